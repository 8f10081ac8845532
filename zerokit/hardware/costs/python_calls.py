"""The CPU time of Python functions of libraries, measured: `python_calls.json`.

A row has numbers in units of the call of a usual Python function (`CardCosts.python_call`): of a call, of each
frame that it calls itself, and of each operator. So a loop over many elements costs more than one over few.
Functions that were not measured have the mean of measured ones that are like them. A call costs more the more other
functions ran since the last one, because the processor's caches forget (`coldness`, `sizes`).
"""

from __future__ import annotations

from functools import cache
from types import CodeType
from typing import Any, Literal, NamedTuple

from zerokit.code_origin import path_in_library
from zerokit.tables import table_of

PASS = ("torch/autograd/graph.py", "_engine_run_backward")
"""The function that runs a backward pass."""
SMALLEST_PASS = 32_768
"""Units; in smaller passes, a loop over elements without a call looks like a warm cache."""
Kind = Literal["deepspeed", "forward", "others"]
"""DeepSpeed's functions; forward passes of modules; all others."""


class FunctionCost(NamedTuple):
    """A function's own time, in units of a usual call; :func:`coldness` multiplies :attr:`call`."""

    call: float
    frame: float = 0.0
    """Of each frame that it calls."""
    operator: float = 0.0
    """Of each operator that it calls, besides its launch."""


def function_name(code: CodeType) -> tuple[str, str]:
    """The key of a function in the table: its file inside its package or Python's library, and its qualified name."""
    return path_in_library(code.co_filename), code.co_qualname


def function_cost(code: CodeType) -> FunctionCost:
    """The cost of a function: as measured, or else of its kind."""
    path, name = function_name(code)
    row = functions().get(path, {}).get(name)
    return FunctionCost(*(_table()["kinds"][kind_of(path, name)] if row is None else row))


def kind_of(path: str, name: str) -> Kind:
    """What a function is like in its cost; arguments as of :func:`function_name`."""
    if path.startswith("deepspeed/"):
        return "deepspeed"
    return "forward" if name.rpartition(".")[2] == "forward" else "others"


def coldness() -> list[float]:
    """Factors of a call by the number of other functions since the last: none, 1, 2 to 3, 4 to 7, ..., and beyond."""
    factors: list[float] = _table()["coldness"]
    return factors


def sizes() -> list[float]:
    """Factors of all by the units from one backward pass to the next, whose data leaves the caches.

    The first is for less than :data:`SMALLEST_PASS`, the next for less than twice as much, ..., and beyond.
    """
    factors: list[float] = _table()["sizes"]
    return factors


def cold_node() -> float:
    """Units of a node of autograd's backward pass beyond its calibrated time, to be multiplied by its coldness."""
    return float(_table()["node"])


def functions() -> dict[str, dict[str, list[float]]]:
    """The table: rows by file and qualified name."""
    rows: dict[str, dict[str, list[float]]] = _table()["functions"]
    return rows


@cache
def _table() -> Any:
    return table_of(__file__)

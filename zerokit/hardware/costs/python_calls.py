"""The CPU time of Python functions of libraries, measured: `python_calls.json`.

A row has numbers in units of the call of a usual Python function (`CardCosts.python_call`): of a call, of each
frame that it calls itself, and of each operator. So a loop over many elements costs more than one over few.
Functions that were not measured have the mean of measured ones that are like them.
"""

from __future__ import annotations

from functools import cache
from types import CodeType
from typing import Any, Literal, NamedTuple

from zerokit.code_origin import path_in_library
from zerokit.tables import table_of

Kind = Literal["deepspeed", "forward", "others"]
"""DeepSpeed's functions; forward passes of modules; all others."""


class FunctionCost(NamedTuple):
    """A function's own time, in units of a usual call."""

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


def functions() -> dict[str, dict[str, list[float]]]:
    """The table: rows by file and qualified name."""
    rows: dict[str, dict[str, list[float]]] = _table()["functions"]
    return rows


@cache
def _table() -> Any:
    return table_of(__file__)

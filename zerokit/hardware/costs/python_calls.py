"""The CPU time of Python functions of libraries, measured: `python_calls.json`.

A row has numbers in units of the call of a usual Python function (`CardCosts.python_call`): of a call, of each
frame that it calls itself, and of each operator. So a loop over many elements costs more than one over few.
"""

from __future__ import annotations

from functools import cache
from types import CodeType
from typing import NamedTuple

from zerokit.code_origin import path_in_library
from zerokit.tables import table_of


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


def function_cost(code: CodeType) -> FunctionCost | None:
    """The measured cost of a function; None if the table has none."""
    path, name = function_name(code)
    row = functions().get(path, {}).get(name)
    return None if row is None else FunctionCost(*row)


@cache
def functions() -> dict[str, dict[str, list[float]]]:
    """The table: rows by file and qualified name."""
    rows: dict[str, dict[str, list[float]]] = table_of(__file__)["functions"]
    return rows

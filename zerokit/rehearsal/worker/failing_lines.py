"""What the line that failed names: whose objects take part in what was raised."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from zerokit.rehearsal.call_sites import OWN

_UNEXPECTED = (TypeError, ValueError, AttributeError, LookupError)
"""What Python raises of names that are not there, and of values other than expected."""


def last_of(error: BaseException) -> TracebackType | None:
    """Where `error` was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def instruction(frame: FrameType, offset: int) -> dis.Instruction | None:
    """None where compiled code, such as Cython's, has made a frame that has no instructions of its own."""
    return next((one for one in dis.get_instructions(frame.f_code) if one.offset == offset), None)


def raises(frame: FrameType, offset: int) -> bool:
    """Whether an instruction is a ``raise``."""
    found = instruction(frame, offset)
    return found is not None and found.opname in ("RAISE_VARARGS", "RERAISE")


@functools.cache
def tree_of(path: str) -> ast.Module:
    """Of a file of Python; an empty one of any other, such as Cython's, which its frames name, too."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):  # ValueError: a zero byte
        return ast.Module([], [])


def named(error: BaseException) -> Iterator[Any]:
    """Objects that the line names at which Python raised `error`; none if a ``raise`` stands there.

    And those that are named where a variable of that line got its value.
    """
    trace = last_of(error)
    if trace is None or not isinstance(error, _UNEXPECTED):
        return
    frame = trace.tb_frame
    path = frame.f_code.co_filename
    if path.startswith(OWN) or raises(frame, trace.tb_lasti):
        return
    inside = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.stmt) and node.lineno <= trace.tb_lineno <= (node.end_lineno or 0)
    ]
    if not inside:
        return
    line = max(inside, key=lambda node: node.lineno)  # the innermost
    within = next((node for node in reversed(inside) if isinstance(node, ast.FunctionDef)), None)
    words = {node.id for node in ast.walk(line) if isinstance(node, ast.Name)}
    sources = [
        node.value
        for node in ast.walk(within or ast.Module([], []))
        if isinstance(node, ast.Assign) and words & {name for one in node.targets for name in _names(one)}
    ]
    for node in (line, *sources):
        for part in ast.walk(node):
            if isinstance(part, ast.Name | ast.Attribute):
                yield _value(part, frame)


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _value(node: ast.expr, frame: FrameType) -> Any:
    """What a name stands for, None if that takes running code."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_value(node.value, frame), node.attr, None)
    return None

"""Which line of code an allocation comes from."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType

from zerokit import patches
from zerokit.code_origin import INSTALLED, is_in_library, is_no_file, is_stdlib

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""The folder of zerokit's code."""
OWN = str(Path(__file__).parent) + os.sep
"""The folder of the rehearsal's own code."""
_PASSED_OVER = "/deepspeed/utils/nvtx.py"
_PASSING_ON = ("deepspeed/ops/op_builder/", "triton/runtime/")
"""Folders of code that only passes a request on; its callers are more useful."""


class CallSites:
    """A table of calling lines; :meth:`find` gives the index of the one that is running."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[CodeType, int], int] = {}
        self._passed_over: dict[str, bool] = {}
        self._between: tuple[str, ...] = (OWN, patches.__file__, folder_of("torch"))

    def pass_over(self, folder: Path) -> None:
        """Treat code in `folder` as generated: report its callers instead."""
        self._between += (str(folder) + os.sep,)

    def find(self) -> int:
        """Index of the innermost line outside torch and the rehearsal itself, or -1 if there is none.

        Lines of DeepSpeed and transformers count: they say more about a buffer than the script's line.
        """
        frame = sys._getframe().f_back
        while frame is not None:
            code = frame.f_code
            if not self._is_passed_over(code.co_filename):
                line = frame.f_lineno
                key = (code, line)
                if key not in self._known:
                    self._known[key] = len(self.lines)
                    self.lines.append(f"{short_path(code.co_filename)}:{line} in {code.co_qualname}")
                return self._known[key]
            frame = frame.f_back
        return -1

    def _is_passed_over(self, path: str) -> bool:
        known = self._passed_over.get(path)
        if known is None:
            known = path.startswith(self._between) or path.endswith(_PASSED_OVER)
            known = known or is_no_file(path) or is_stdlib(path)
            self._passed_over[path] = known
        return known


@functools.cache
def folder_of(package: str) -> str:
    """The folder of an installed package; a project may have a folder of the same name."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent) + os.sep


@functools.cache
def is_in(path: str, folder: str) -> bool:
    """Whether a file is in a folder of a package, such as ``torch/distributed/``; not if there is none."""
    package, _, inside = folder.partition("/")
    if f"/{package}/" not in path:  # without a search for the package, once for each file
        return False
    with suppress(ValueError):  # a stand-in for a package may have no spec
        spec = importlib.util.find_spec(package)
        # A folder of that name without code in it has no origin.
        return spec is not None and spec.origin is not None and path.startswith(folder_of(package) + inside)
    return False


def is_own_code(path: str) -> bool:
    """Whether a file is the rehearsal's own, or none at all."""
    return path.startswith((OWN, patches.__file__)) or is_no_file(path)


@functools.cache
def is_of_script(path: str) -> bool:
    """Whether a file is the user's own."""
    return not is_own_code(path) and not is_in_library(path)


def innermost_and_script(places: Iterable[tuple[str, int]]) -> tuple[str | None, str | None]:
    """The innermost line outside this package, and the innermost of the user's own, as ``file:line``.

    `places` are the files and lines of a stack, the innermost first.
    """
    innermost: str | None = None
    for path, number in places:
        if is_own_code(path) or any(is_in(path, folder) for folder in _PASSING_ON):
            continue
        line = f"{inside_package(path)}:{number}"
        innermost = innermost or line
        if is_of_script(path):
            return innermost, line
    return innermost, None


def in_words(innermost: str | None, script: str | None) -> str | None:
    """What :func:`innermost_and_script` gives, as one place."""
    return innermost if script in (None, innermost) else f"{innermost} (called from {script})"


def inside_package(path: str) -> str:
    """`path` inside its package; all of it if it is the user's own."""
    for folder in INSTALLED:
        _, found, inside = path.partition(folder)
        if found:
            return inside
    return path


def short_path(path: str) -> str:
    """`path` inside its package, or relative to the working directory."""
    inside = inside_package(path)
    try:
        return str(Path(inside).relative_to(Path.cwd()))
    except ValueError:
        return inside


@functools.cache
def tree_of(path: str) -> ast.Module:
    """Of a file of Python; an empty one of any other, such as Cython's, which its frames name, too."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):  # ValueError: a zero byte
        return ast.Module([], [])

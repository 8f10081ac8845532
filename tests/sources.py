"""The sources of zerokit, each parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import zerokit

PACKAGE = Path(zerokit.__file__).resolve().parent


@cache
def parsed(file: Path) -> ast.Module:
    """The tree of a file of zerokit."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file of zerokit, those of a function after it."""
    return tuple(ast.walk(parsed(file)))

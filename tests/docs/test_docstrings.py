"""Docstrings, as the site reads them: each line of ``Args`` names one parameter that there is."""

from __future__ import annotations

import ast
import re

from tests.sources import PACKAGE, parsed

ARGS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)
NAMED = re.compile(r"^    ([*\w]+(?:, [*\w]+)*):", re.MULTILINE)


def strangers(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """What its docstring calls a parameter, and is none."""
    section = ARGS.search(ast.get_docstring(function) or "")
    of = function.args
    known = {one.arg for one in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg) if one}
    return [one for one in NAMED.findall(section[1] if section else "") if one.lstrip("*") not in known]


def test_each_line_names_a_parameter() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {
        f"{file.relative_to(PACKAGE)}: {node.name}: {names}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(parsed(file))
        if isinstance(node, functions) and (names := strangers(node))
    }
    assert found == set()

"""The tests themselves: none of them depends on how busy the machine is, or says so by its marker."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import FOLDERS
from tests.each import each
from tests.tiny import REPOSITORY

TESTS = REPOSITORY / "tests"
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"}
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}
CLOCKS |= {"getrusage", "times"}
MODULES_OF_CLOCKS = {"time", "resource", "os"}
WAITING = {"run", "wait", "communicate", "check_call", "check_output"}
HANGS_END_IN = (TESTS / "processes.py", TESTS / "forked.py")
FILES = sorted(
    file
    for file in TESTS.rglob("*.py")
    if not {"scripts", "validation"} & set(file.parts) and file not in (*HANGS_END_IN, TESTS / "examples.py")
)


def clocks_in(tree: ast.AST) -> list[tuple[int, str]]:
    """The lines that name a clock, and which: of its module by any name, or imported from it."""
    nodes = list(ast.walk(tree))
    modules = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in MODULES_OF_CLOCKS
    }
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            if isinstance(node.value, ast.Name) and node.value.id in modules:
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES_OF_CLOCKS:
            found += [(node.lineno, alias.name) for alias in node.names if alias.name in CLOCKS]
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.monotonic()",
        "import time as t; t.time()",
        "from time import perf_counter",
        "from time import monotonic_ns as now",
        "def test():\n    import resource\n    resource.getrusage(0)",
        "import os; os.times()",
    ],
)
def test_a_clock_is_found_however_it_is_imported(code: str) -> None:
    assert len(clocks_in(ast.parse(code))) == 1
    assert clocks_in(ast.parse("import numpy as np, time\nnp.time(time.sleep)")) == []


@each(FILES, by=lambda file: file.relative_to(TESTS).parts[0])
def test_no_test_measures_or_limits_seconds(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [
        f"{line}: {clock}; tests.work counts calls, tests/validation/benchmarks measures"
        for line, clock in clocks_in(tree)
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg for keyword in node.keywords}
        if name in WAITING and "timeout" in keywords:
            found.append(f"{node.lineno}: a limit in seconds; tests.processes ends what hangs")
        if name == "settings" and keywords & {"deadline", "max_examples"}:
            found.append(f"{node.lineno}: settings of hypothesis; tests.examples and conftest.py have them")
    assert not found, found


def test_folders_that_bear_markers_exist() -> None:
    assert all((TESTS / folder).is_dir() for folder in FOLDERS)

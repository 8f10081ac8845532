"""The tests themselves: none of them depends on how busy the machine is, or says so by its marker."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import processes
from tests.combinations import REST
from tests.conftest import FOLDERS
from tests.each import each
from tests.tiny import REPOSITORY

TESTS = REPOSITORY / "tests"
LIGHT = "not torch and not rehearsal and not distributed and not gpu"
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"}
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}
CLOCKS |= {"getrusage", "times"}
MODULES_OF_CLOCKS = {"time", "resource", "os"}
WAITING = {"run", "wait", "communicate", "check_call", "check_output"}
LENT_BY_THE_MINUTE = TESTS / "gpu" / "compare_with_gpu.py"
"""Measures on a machine that is there for so many seconds, which it is told."""
HANGS_END_IN = (TESTS / "processes.py", TESTS / "forked.py")
PROGRAMS = [
    TESTS / "calibration" / "pace.py",
    *(TESTS / "gpu" / f"{name}.py" for name in ("packed_speed", "train_once")),
]
"""Make records, by a command of their own; say how long each took."""
FILES = sorted(
    file
    for file in TESTS.rglob("*.py")
    if not {"benchmarks", "scripts", "validation"} & set(file.parts)
    and file not in (*HANGS_END_IN, TESTS / "examples.py", LENT_BY_THE_MINUTE)
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
        f"{line}: {clock}; tests.work counts calls, tests/benchmarks measure"
        for line, clock in clocks_in(tree)
        if file not in PROGRAMS
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


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that never wait, at the priority of everything else."""
    # They also end with this process, however it ends: the pipe that they look at closes.
    code = "import select, sys\nwhile not select.select([sys.stdin], [], [], 0)[0]: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
        assert all(loop.poll() is None for loop in loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


PARTS = 24
_PARTS = [pytest.param(at, marks=() if at == 0 else REST) for at in range(PARTS)]


@pytest.mark.distributed
@pytest.mark.parametrize("part", _PARTS)
def test_the_quick_part_passes_on_a_busy_machine_without_torch(part: int, tmp_path: Path) -> None:
    """`make check`'s tests beside four busy loops, and without torch: all that need it bear the marker."""
    others = [file for at, file in enumerate(sorted(TESTS.rglob("test_*.py"))) if at % PARTS != part]
    words = ["-m", LIGHT, "--hypothesis-profile=quick", "-q", "-n", "2", "-p", "no:cacheprovider"]
    words += [f"--ignore={file}" for file in others]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(TESTS / "without_torch")
    with busy_loops(4):
        done = processes.run(
            [sys.executable, "-m", "pytest", *words, f"--basetemp={tmp_path / 'light'}"],
            cwd=REPOSITORY,
            env=environment,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "torch'" not in done.stdout, "skipped for want of torch, in place of bearing the marker"

"""House rules of the tests: no test reads a clock or limits seconds, which depend on the machine's load."""

from __future__ import annotations

import re

from tests.conftest import FOLDERS
from tests.tiny import REPOSITORY

TESTS = REPOSITORY / "tests"
CLOCKS = "time|monotonic|perf_counter|process_time|thread_time|clock_gettime"
CLOCK = re.compile(
    rf"\btime\.(?:{CLOCKS})(?:_ns)?\(|\bos\.times\(|\bfrom time import|\bimport time as\b"
    r"|\b(?:run|wait|communicate|check_call|check_output)\([^()]*timeout="
    r"|\bsettings\([^()]*(?:deadline|max_examples)="
)
MAY = {"conftest.py", "examples.py", "forked.py", "processes.py", "test_processes.py", "test_suite.py"}
"""Files that end what hangs, or have the settings of hypothesis."""


def test_no_test_measures_or_limits_seconds() -> None:
    files = [
        file
        for file in TESTS.rglob("*.py")
        if not {"scripts", "validation"} & set(file.parts) and file.name not in MAY
    ]
    assert len(files) > 200
    found = {
        f"{file.relative_to(TESTS)}: {match[0]}"
        for file in files
        for match in CLOCK.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_folders_that_bear_markers_exist() -> None:
    assert all((TESTS / folder).is_dir() for folder in FOLDERS)

"""A sample of the bad inputs: what becomes of them, not what they cost."""

from __future__ import annotations

import sys

import pytest

from tests import processes
from tests.tiny import REPOSITORY


@pytest.mark.slow
def test_a_sample_ends_with_a_line_and_an_exit_code() -> None:
    program = [sys.executable, "-m", "tests.validation.faults.bad_inputs"]
    done = processes.run([*program, "--number", "26", "--step", "31", "--any-cost"], cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 of 26 are not as they must be" in done.stdout

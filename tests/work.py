"""How much work something is, in calls of Python functions: the same however busy the machine is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tests import processes
from tests.tiny import REPOSITORY


def calls_in(function: Callable[[], object]) -> int:
    """How many calls `function` makes, itself included: of Python's functions, not of those in C."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def calls_of_command(*arguments: str | Path) -> int:
    """How many calls ``zerokit ARGUMENTS`` makes, from its first import to its end."""
    command = [sys.executable, "-m", "tests.work", *map(str, arguments)]
    done = processes.run(command, cwd=REPOSITORY, env=os.environ | {"PYTHONHASHSEED": "0"})
    assert done.stdout, done.stderr
    return int(done.stderr.splitlines()[-1])


def _main() -> None:
    def command() -> None:
        from zerokit.cli.main import main

        with suppress(SystemExit):
            main()

    sys.argv[0] = "zerokit"
    print(calls_in(command), file=sys.stderr)


if __name__ == "__main__":
    _main()

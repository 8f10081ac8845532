"""Control groups of what tests start."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")


@contextmanager
def control_groups(*limits: tuple[str, str]) -> Iterator[list[str]]:
    """Make groups of version 1 with these limits, below this process's own; lines of shell that join them.

    Args:
        limits: files such as ``memory/memory.limit_in_bytes``, and what is written to them.
    """
    made = []
    for name, value in limits:
        controller, _, file = name.partition("/")
        (own,) = (
            line.split(":")[2]
            for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
            if line.split(":")[1] == controller
        )
        group = _MOUNTED / controller / own.lstrip("/") / f"tests-{os.getpid()}"
        group.mkdir()
        made.append(group)
        (group / file).write_text(value, encoding="utf-8")
    try:
        yield [f"echo $$ > {shlex.quote(str(group))}/cgroup.procs" for group in made]
    finally:
        for group in made:
            for _ in range(100):  # the last of its processes may be on its way out
                with suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.1)

"""`zerokit rehearse`, run as a person runs it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import processes
from tests.rehearsal import forked_command, forked_worker
from tests.tiny import REPOSITORY

SCRIPTS = REPOSITORY / "tests" / "rehearsal" / "scripts"
_COMMAND = "from zerokit.cli.main import main; main()"
_SET = f"from zerokit.rehearsal.parent import processes; processes.WORKER = {forked_worker.__name__!r}"
FORKED = (sys.executable, "-c", f"{_SET}; {_COMMAND}")
"""``zerokit`` with forked workers; it needs the variable of :mod:`tests.rehearsal.forked_worker`."""


@dataclass(frozen=True)
class Rehearsed:
    """What one run of the command left."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The report of a run with ``--format json``; what was printed on stderr says why there is none."""
        assert self.code in (0, 1), self.err[-4000:]
        report: dict[str, Any] = json.loads(self.out)
        return report


def rehearse(
    *words: object,
    cwd: Path,
    forked: bool = False,
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> Rehearsed:
    """Run ``zerokit rehearse WORDS`` in `cwd`, with neither a Hub nor a warm cache of data sets.

    Args:
        words: options, the script and its arguments.
        cwd: the folder to run in.
        forked: whether the command and its workers are forked: see :mod:`tests.rehearsal.forked_worker`.
        python: the interpreter of the environment to rehearse in.
        variables: further environment variables.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("DS_ACCELERATOR", "OMP_NUM_THREADS")},
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(cwd / "datasets-cache"),
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY), os.environ.get("PYTHONPATH", ""))),
        **(variables or {}),
    }
    command = ["rehearse", *map(str, words)]
    if forked:
        environment[forked_worker.SOCKET] = forked_worker.server()
        done = forked_command.run(command, cwd=cwd, env=environment)
    else:
        done = processes.run([python, "-c", _COMMAND, *command], cwd=cwd, env=environment)
    return Rehearsed(done.returncode, done.stdout, done.stderr)

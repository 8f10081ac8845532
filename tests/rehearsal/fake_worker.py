"""A worker in place of the real one: it runs the script, which says itself how the rehearsal ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerokit.rehearsal.parent import processes, start
from zerokit.rehearsal.recording import Recording

_MODULE = """
import json, pathlib, shutil, sys
job = json.loads(pathlib.Path(sys.argv[1]).read_text())
def give(file):
    shutil.copy(file, job["recording_file"])
exec(pathlib.Path(job["script"]).read_text(), {"job": job, "give": give})
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have :mod:`zerokit.rehearsal.parent.processes` start this worker for the length of a test."""
    (folder / "fake_rehearsal_worker.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(processes, "WORKER", "fake_rehearsal_worker")
    monkeypatch.setattr(start, "built_library", lambda: None)


def saved(folder: Path, recording: Recording) -> str:
    """Save `recording`; return code that gives it to the worker."""
    file = folder / f"given-{len(list(folder.glob('given-*')))}.npz"
    recording.save(file)
    return f"give({str(file)!r})"


def script(folder: Path, code: str = "", recording: Recording | None = None, then: str = "") -> Path:
    """A script that runs `code`, gives `recording` to its worker and runs `then`."""
    path = folder / "train.py"
    given = "" if recording is None else saved(folder, recording)
    path.write_text(f"{code}\n{given}\n{then}\n")
    return path

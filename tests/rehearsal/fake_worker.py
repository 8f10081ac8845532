"""A worker in place of the real one: it runs the script, which says itself how the rehearsal ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.rehearsal.parent import processes, rehearse
from zerokit.rehearsal.report.report import RehearsalReport

_MODULE = """
import json, pathlib, sys
job = json.loads(pathlib.Path(sys.argv[1]).read_text())
exec(pathlib.Path(job["script"]).read_text(), {"job": job, "give":
pathlib.Path(job["report_file"]).write_text})
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have :mod:`zerokit.rehearsal.parent.processes` start this worker for the length of a test."""
    (folder / "fake_rehearsal_worker.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(processes, "WORKER", "fake_rehearsal_worker")
    monkeypatch.setattr(rehearse, "built_library", lambda: None)


def script(folder: Path, code: str = "", report: RehearsalReport | None = None, then: str = "") -> Path:
    """A script that runs `code`, gives `report` to its worker and runs `then`."""
    path = folder / "train.py"
    given = "" if report is None else f"give({report.model_dump_json()!r})"
    path.write_text(f"{code}\n{given}\n{then}\n")
    return path

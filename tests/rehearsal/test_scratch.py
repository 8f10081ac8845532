"""However a rehearsal ends, its folders do not stay."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests import processes
from tests.rehearsal import fake_worker
from zerokit.rehearsal.scratch import scratch_folder
from zerokit.staging import MARK

REHEARSE = """
import os, sys
from zerokit.rehearsal.parent import processes, rehearse
processes.WORKER, rehearse.built_library = "fake_rehearsal_worker", lambda: None
os.environ["COMMAND"] = str(os.getpid())
rehearse.rehearse(sys.argv[1], num_gpus=1)
"""
SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def ended_by(number: signal.Signals, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rehearse a script that sends a signal to the rehearsal; the folder of temporary files."""
    fake_worker.install(monkeypatch, folder)
    then = "" if number == signal.SIGKILL else "signal.pause()"
    code = f"import os, signal\nos.kill(int(os.environ['COMMAND']), {number:d})\n{then}"
    script = fake_worker.script(folder, code)
    temporary = folder / "tmp"
    temporary.mkdir()
    words = [*processes.INTERRUPTIBLE, "-c", REHEARSE, script]
    ended = processes.run(words, cwd=folder, env={**os.environ, "TMPDIR": str(temporary)})
    assert ended.returncode in (128 + number, -number), ended.stderr
    return temporary


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_leaves_no_folder(number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(ended_by(number, tmp_path, monkeypatch).iterdir()) == []


def test_what_one_that_was_killed_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = ended_by(signal.SIGKILL, tmp_path, monkeypatch)
    left = list(temporary.iterdir())
    assert len(left) == 1
    with scratch_folder(temporary) as folder:
        assert list(temporary.iterdir()) == [folder.parent] != left
    assert list(temporary.iterdir()) == []


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "zerokit-rehearsal-of-somebody-else"
    other.mkdir()
    with scratch_folder(tmp_path) as first:
        with scratch_folder(tmp_path) as second:
            assert list(first.iterdir()) == list(second.iterdir()) == []
        assert first.is_dir()
        assert not second.parent.exists()
    assert list(tmp_path.iterdir()) == [other]


def test_a_folder_that_a_link_leads_to_is_left_alone(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "files").mkdir(parents=True)
    for name in ("lock", MARK):
        (project / name).touch()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (temporary / "zerokit-rehearsal-x").symlink_to(project)
    with scratch_folder(temporary):
        pass
    assert (project / "files").is_dir()

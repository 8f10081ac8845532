"""How the quickstart shows what its runs do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zerokit.distributed.extensions import COMPILING
from zerokit.errors import ZerokitError
from zerokit.quickstart import launch
from zerokit.quickstart.plan import Devices, make_plan, write_plan


def finishes(code: str) -> list[str]:
    """A launcher whose two ranks run `code`, one after the other, and finish."""
    reports = "from zerokit.distributed.exit_reports import exit_now; exit_now(0)"
    start = f"RANK=$RANK {sys.executable} -c '{reports}'"
    return ["sh", "-c", f'{sys.executable} -c "$0"; for RANK in 0 1; do {start}; done', code]


def test_it_says_once_that_deepspeed_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{COMPILING}shm_comm, once per environment"
    command = finishes(f"print('loading', flush=True); print({line!r}, flush=True)")
    monkeypatch.setattr(launch, "deepspeed_words", lambda ranks, *words: command)
    launch.run(2, ["train.py"], tmp_path / "log", tmp_path / "metrics.jsonl", what="corpus")
    said = capsys.readouterr().err
    assert said.count(line) == 1
    assert "loading" not in said


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('' in sys.path)"]
    monkeypatch.setattr(launch, "deepspeed_words", lambda ranks, *words: command)
    launch.run(2, ["train.py"], tmp_path / "log", None, what="corpus")


def test_what_another_run_writes_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two quickstarts meet in one folder: the first goes on, the second ends with its run's error."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 7, "loss": 1.0}\n', encoding="utf-8")
    command = [sys.executable, "-c", "raise SystemExit('the folder is in use')"]
    monkeypatch.setattr(launch, "deepspeed_words", lambda ranks, *words: command)
    with pytest.raises(launch.RunFailedError):
        launch.run(2, ["train.py"], tmp_path / "log", metrics, what="corpus")
    assert metrics.read_text(encoding="utf-8") == '{"step": 7, "loss": 1.0}\n'


def test_it_says_how_long_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run itself reckons: 30 s for 10 of 40 steps."""
    metrics = tmp_path / "metrics.jsonl"
    first = '{"max_steps": 40, "step": 0, "elapsed_seconds": 0.0}'
    logged = '{"step": 10, "loss": 2.5, "elapsed_seconds": 30.0}'
    write = f"open({str(metrics)!r}, 'w').write({first + chr(10) + logged + chr(10)!r})"
    monkeypatch.setattr(launch, "deepspeed_words", lambda ranks, *words: finishes(write))
    launch.run(2, ["train.py"], tmp_path / "log", metrics, what="corpus")
    assert "      step 10/40  loss 2.500  1 min 30 s left\n" in capsys.readouterr().err


def test_its_files_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "quickstart"
    theirs.mkdir()
    folder.mkdir()
    (theirs / "file").write_text("theirs")
    plan = make_plan(folder, Devices("CPU", 2, "fp32"))
    write_plan(plan)
    files = [path for path in folder.iterdir() if path.is_file()]
    for file in (*files, folder / "log"):
        file.unlink(missing_ok=True)
        file.symlink_to(theirs / "file")
    plan.own_recipe_file.unlink()
    write_plan(plan)
    monkeypatch.setattr(launch, "deepspeed_words", lambda ranks, *words: [sys.executable, "-c", ""])
    launch.run(2, ["train.py"], folder / "log", None, what="corpus")
    assert (theirs / "file").read_text() == "theirs"
    plan.stages[0].folder.rmdir()
    plan.stages[0].folder.symlink_to(theirs)
    with pytest.raises(ZerokitError, match="corpus: is a link"):
        write_plan(plan)

"""Whatever a command prints is whole in a narrow terminal: the same words and numbers as in a wide one."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from zerokit import console

Run = Callable[..., tuple[int, str, str]]
InColumns = Callable[[int, Callable[[], object]], str]

CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999]}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
}
SIZED = "--seq-len 4096 --gpu 4090"
COMMANDS = [
    f"estimate llama-3-8b --num-gpus 8 --zero-stage 2 {SIZED} --explain",
    f"estimate llama-3-8b --num-gpus 16 --zero-stage 3 --offload-param nvme --offload-optimizer nvme {SIZED}",
    f"estimate llama-3-70b --num-gpus 8,1024 --zero-stage 1,3 {SIZED}",
    "estimate 7.5B --num-gpus 64 --zero-stage 2 --fit 80GiB",
    "diff a.json b.json --num-gpus 8",
    "resolve a.json --all",
    "check a.json",
    "explain",
    "explain zero_optimization",
    "gpus",
    "models",
    "--help",
    "estimate --help",
    "train --help",
]
NARROW = 60
SIZE = re.compile(r"\d[\d.,]* [KMGT]iB")


@pytest.fixture
def in_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InColumns:
    """What something prints on a terminal of so many columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    def printed(columns: int, act: Callable[[], object]) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        console.stdout.cache_clear()
        given = act()
        out = given[1] if isinstance(given, tuple) else capsys.readouterr().out
        return re.sub(r"\x1b\[[\d;]*m", "", out)

    return printed


def words(text: str) -> set[str]:
    """Without what sets them apart: rules, the colon behind the name of a column, a shell's backslash."""
    return {word.rstrip(":") for word in text.split() if word != "\\" and "─" not in word}


def assert_whole(wide: str, narrow: str, columns: int, *, folded: bool = True) -> None:
    assert words(narrow) == words(wide)
    assert set(SIZE.findall(narrow)) == set(SIZE.findall(wide))
    if folded:
        for line in narrow.splitlines():
            assert len(line.rstrip()) <= columns or len(line.split()) == 1, line


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_breaks_no_word_and_no_number(
    command: str, zerokit: Run, in_columns: InColumns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    Path("b.json").write_text(json.dumps({**CONFIG, "gradient_clipping": 0.5}), encoding="utf-8")
    wide, narrow = (in_columns(width, lambda: zerokit(*command.split())) for width in (200, NARROW))
    assert len(words(wide)) > 5
    # Findings are never folded, so that they can be searched.
    assert_whole(wide, narrow, NARROW, folded=not command.startswith("check"))


@pytest.mark.torch
def test_reports_break_no_word_and_no_number(
    in_columns: InColumns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.rehearsal.recordings import device_with, job, training
    from zerokit.rehearsal.report.analysis import analyse
    from zerokit.rehearsal.report.report import Advice
    from zerokit.rehearsal.report.tables import print_report

    advice = Advice(
        change="optimizer on the host",
        saves_bytes=2**30,
        peak_bytes=2**31,
        host_bytes=2**40,
        verdict="does not fit",
        how='"zero_optimization": {"offload_optimizer": {"device": "cpu"}}; and a script of its own, too',
    )
    report = analyse(training(), job(device=device_with(2**30))).model_copy(update={"advice": [advice]})
    wide = in_columns(200, lambda: print_report(report, details=True))
    for columns in (80, NARROW):
        narrow = in_columns(columns, lambda: print_report(report, details=True))
        assert_whole(wide, narrow, columns)


def test_numbers_of_a_bar_are_whole_in_a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "loss 6.0533  65,412 tokens/s  peak 44.84 MiB"
    for width in (80, 99, 100, 140):
        screen = Console(file=io.StringIO(), force_terminal=True, width=width)
        monkeypatch.setattr(console, "stderr", lambda screen=screen: screen)
        with console.progress() as bar:
            bar.add_task("training", total=2880, completed=1285, note=note)
        shown = screen.file.getvalue()  # type: ignore[attr-defined]
        assert "…" not in shown
        assert "1285/2880" in shown
        assert note.rpartition("  ")[2] in shown

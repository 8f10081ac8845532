"""What a rank does at the moment, in a file that the command reads while it waits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from zerokit.files import write_file
from zerokit.rehearsal.watching.watcher import StepEnd, Watcher


def _file_of(recording_file: str) -> Path:
    return Path(recording_file).with_suffix(".doing")


def doing(recording_file: str) -> str:
    """The words that the rank of `recording_file` has written last; empty if there are none yet."""
    with suppress(OSError, ValueError):
        return _file_of(recording_file).read_text(encoding="utf-8")
    return ""


class Doing(Watcher):
    """Writes them; `steps` is the number of optimizer steps of the run, 0 if it is not known."""

    def __init__(self, recording_file: str, steps: int) -> None:
        self._file, self._steps = _file_of(recording_file), steps
        self._write("imports and makes the model")

    def on_engine_end(self, engine: Any) -> None:
        self._write(f"is in {self._step(1)}")

    def on_step_end(self, end: StepEnd) -> None:
        is_last = end.step >= self._steps > 0
        self._write("rehearses the largest batches" if is_last else f"is in {self._step(end.step + 1)}")

    def on_run_end(self) -> None:
        self._write("ends")

    on_exit = on_run_end

    def _step(self, step: int) -> str:
        return f"step {step} of {self._steps}" if self._steps else f"step {step}"

    def _write(self, words: str) -> None:
        with suppress(OSError):  # a full disk, which the recording will report
            write_file(self._file, words)

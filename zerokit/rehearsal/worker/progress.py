"""What a rank does at the moment: in words, and the line that it executes, without its script's help."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerokit.files import write_file
from zerokit.rehearsal.call_sites import in_words, innermost_and_script
from zerokit.rehearsal.watching.watcher import StepEnd, Watcher

_ASKED = signal.SIGRTMAX
"""No script or library waits for it."""
_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_READS, _PAUSE = 20, 0.05
"""Seconds between reads of the answer, which a signal handler writes."""


def answer(recording_file: str) -> None:
    """Have this process write its stacks to a file next to `recording_file` whenever :func:`ask` does."""
    file = os.open(Path(recording_file).with_suffix(".stack"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(file, f"{os.getpid()}\n".encode())
    faulthandler.register(_ASKED, file, all_threads=True)


def ask(recording_file: str) -> str | None:
    """The line that the running process of `recording_file` executes, None if it does not answer."""
    path = Path(recording_file).with_suffix(".stack")
    with suppress(OSError, ValueError):
        os.kill(int(path.read_text().partition("\n")[0]), _ASKED)
        texts = [""]
        while len(texts) < _READS and (texts[-1].count("\n") < 2 or texts[-1] != texts[-2]):
            time.sleep(_PAUSE)
            texts.append(path.read_text())
        # The main thread is the oldest, so its stack is the last in the text.
        main = texts[-1].rpartition("(most recent call first):")[2]
        places = ((file, int(line)) for file, line in _FRAME.findall(main))
        return in_words(*innermost_and_script(places))
    return None


def doing(recording_file: str) -> str:
    """The words that the rank of `recording_file` has written last; empty if there are none yet."""
    with suppress(OSError, ValueError):
        return Path(recording_file).with_suffix(".doing").read_text(encoding="utf-8")
    return ""


class Doing(Watcher):
    """Writes them; `steps` is the number of optimizer steps of the run, 0 if it is not known."""

    def __init__(self, recording_file: str, steps: int) -> None:
        self._file, self._steps = Path(recording_file).with_suffix(".doing"), steps
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

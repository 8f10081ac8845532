"""The line that a rank executes when its time is up, found without its script's help."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

from zerokit.rehearsal.call_sites import in_words, innermost_and_script

_ASKED = signal.SIGRTMAX
"""No script or library waits for it."""
_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_READS, _PAUSE = 20, 0.05
"""Seconds between reads of the answer, which a signal handler writes."""


def _file_of(recording_file: str) -> Path:
    return Path(recording_file).with_suffix(".stack")


def answer(recording_file: str) -> None:
    """Have this process write its stacks to a file next to `recording_file` whenever :func:`ask` does."""
    file = os.open(_file_of(recording_file), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(file, f"{os.getpid()}\n".encode())
    faulthandler.register(_ASKED, file, all_threads=True)


def ask(recording_file: str) -> str | None:
    """The line that the running process of `recording_file` executes, None if it does not answer."""
    path = _file_of(recording_file)
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

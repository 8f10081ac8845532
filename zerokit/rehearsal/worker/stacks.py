"""Where a rank stands when its time is up, which it tells without its script's help."""

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
"""No script, and no library of one, waits for it."""
_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_LOOKS, _PAUSE = 20, 0.05
"""Seconds between looks at an answer, which comes from a signal's handler."""


def _file_of(recording_file: str) -> Path:
    return Path(recording_file).with_suffix(".stack")


def answer(recording_file: str) -> None:
    """Have this process write its stacks to a file beside `recording_file` whenever :func:`ask` does."""
    file = os.open(_file_of(recording_file), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(file, f"{os.getpid()}\n".encode())
    faulthandler.register(_ASKED, file, all_threads=True)


def ask(recording_file: str) -> str | None:
    """The line at which the process stands that answers there, None if it does not say.

    It must be running.
    """
    path = _file_of(recording_file)
    with suppress(OSError, ValueError):
        os.kill(int(path.read_text().partition("\n")[0]), _ASKED)
        told = [""]
        while len(told) < _LOOKS and (told[-1].count("\n") < 2 or told[-1] != told[-2]):
            time.sleep(_PAUSE)
            told.append(path.read_text())
        # The main thread is the oldest, and told last.
        main = told[-1].rpartition("(most recent call first):")[2]
        places = ((file, int(line)) for file, line in _FRAME.findall(main))
        return in_words(*innermost_and_script(places))
    return None

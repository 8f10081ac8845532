"""Compilers that run in parallel and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

_PAUSE = 0.05
"""Seconds between looks for compilers that have ended."""


def run_together(
    commands: Mapping[str, Sequence[str]], scratch: Path
) -> Generator[tuple[str, subprocess.CompletedProcess[str]], None, None]:
    """Run as many commands at once as there are CPUs; yield name and result of each as it ends.

    All of them have ended when the iterator is closed, which a signal's exception has to do (`contextlib.closing`).

    Raises:
        OSError: a command cannot be started.
    """
    waiting = list(commands)
    running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    environment = {**os.environ, "TMPDIR": str(scratch)}

    def start(name: str) -> None:
        errors: IO[bytes] = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - read when it ends
        # A group of its own: g++ leaves what it started running when it is ended itself.
        process = subprocess.Popen(commands[name], env=environment, stdout=errors, stderr=errors, process_group=0)
        running[name] = process, errors

    # Python handles signals in the main thread: none comes between the start of a compiler and the note that it
    # runs. Blocking them is not enough, since any other thread takes them for the process.
    starter = ThreadPoolExecutor(1)
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                starter.submit(start, waiting.pop(0)).result()
            time.sleep(_PAUSE)
            for name in [name for name, (process, _) in running.items() if process.poll() is not None]:
                process, errors = running.pop(name)
                errors.seek(0)
                printed = errors.read().decode(errors="replace")
                yield name, subprocess.CompletedProcess(commands[name], process.returncode, "", printed)
    finally:
        starter.shutdown(cancel_futures=True)
        for process, _ in running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

"""The meaning of exit codes, in each launcher's notation of signals."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from zerokit.errors import ZerokitError


class Meaning(NamedTuple):
    """The meaning of a code."""

    message: str
    fix: str
    in_log: bool = False
    """Whether a log has better information."""


_CODES = {
    0: Meaning("the run ended well", "There is nothing to fix"),
    1: Meaning(
        "Python ended with an exception, or zerokit's answer is 'no'",
        "Read the first traceback of the log",
        in_log=True,
    ),
    2: Meaning("unusable input or options", "Read the line that begins with 'zerokit: error:' or 'usage:'"),
    75: Meaning(
        "a run of zerokit was asked to stop, by a signal or because its launcher ended",
        "Resume from its last checkpoint, if there is one: --training.resume_from_checkpoint true",
    ),
    124: Meaning("the command 'timeout' ended the run", "Allow it more time"),
    125: Meaning("the container could not be started", "Read what docker or podman says above"),
    126: Meaning("the command cannot be executed", "Check its mode, and the first line of the script"),
    127: Meaning("no such command", "Check PATH on that machine, and whether the environment is activated"),
    255: Meaning(
        "ssh could not reach a machine, or Python ended with exit(-1)",
        "Try 'ssh -o BatchMode=yes HOST true' for each host of the hostfile",
    ),
}

_SIGNALS = {
    "SIGHUP": Meaning(
        "its terminal or ssh connection was closed", "Start it in tmux, or with nohup or sbatch"
    ),
    "SIGINT": Meaning("Ctrl-C was pressed", "There is nothing to fix"),
    "SIGQUIT": Meaning("Ctrl-\\ was pressed", "There is nothing to fix"),
    "SIGILL": Meaning(
        "a compiled extension has instructions that this CPU lacks",
        "Remove the folder of extensions (TORCH_EXTENSIONS_DIR, else ~/.cache/torch_extensions and "
        "~/.cache/zerokit/extensions): it was compiled on another machine",
    ),
    "SIGABRT": Meaning(
        "C++ code aborted: usually NCCL's watchdog after a timeout, or an error in a destructor",
        "Run with PYTHONFAULTHANDLER=1, which shows the Python line; read the log above",
        in_log=True,
    ),
    "SIGBUS": Meaning(
        "shared memory ran out (/dev/shm), or a mapped file was cut while it was read",
        "Start the container with --shm-size=16g or --ipc=host; on Kubernetes mount an emptyDir with "
        "medium: Memory at /dev/shm",
    ),
    "SIGFPE": Meaning("an integer was divided by zero in native code", "Check the last batch"),
    "SIGKILL": Meaning(
        "killed from outside: usually by the kernel or the container, because host memory ran out",
        "Check with 'dmesg -T | grep -i killed' or 'sacct -j JOB -o MaxRSS,State'; then use fewer "
        "ranks per node, fewer data loader workers, or no CPU offload ('zerokit estimate' shows what "
        "the host needs)",
    ),
    "SIGSEGV": Meaning(
        "native code used an invalid address: usually an extension compiled for another torch or CUDA",
        "Remove the folder of extensions (~/.cache/torch_extensions), reinstall flash-attn and "
        "similar packages, and run with PYTHONFAULTHANDLER=1 to see the line",
    ),
    "SIGPIPE": Meaning("the reader of its output has ended", "Write the output to a file"),
    "SIGTERM": Meaning(
        "the process was asked to end: by the launcher, because another rank failed first, or by the "
        "scheduler (preemption, time limit)",
        "Look for the rank that failed first",
        in_log=True,
    ),
    "SIGXCPU": Meaning("the process used more CPU time than 'ulimit -t' allows", "Raise the limit"),
    "SIGXFSZ": Meaning("the process wrote a larger file than 'ulimit -f' allows", "Raise the limit"),
}

_MOST = 64
"""Signals of Linux."""


def parse_code(word: str) -> int | None:
    """The exit code in a word: ``137``, ``-9``, ``SIGKILL``; None for other words.

    Raises:
        ZerokitError: no process ends with that number.
    """
    if word.upper() in signal.Signals.__members__:
        return -signal.Signals[word.upper()]
    if not re.fullmatch(r"-?[0-9]{1,10}", word):
        return None
    code = int(word)
    if not -_MOST <= code <= 255:
        raise ZerokitError(
            f"no process ends with {code}",
            where="LOG|CODE",
            hint="Exit codes are 0 to 255; a signal may be negative, such as -9",
        )
    return code


def signal_of(code: int) -> str | None:
    """The name of the signal behind a code.

    Python writes -9, a shell 128 + 9, and a launcher that ends with Python's code 256 - 9.
    """
    number = -code if code < 0 else 256 - code if code >= 256 - _MOST else code - 128
    try:
        return signal.Signals(number).name if number > 0 and code != 255 else None
    except ValueError:  # a real-time signal
        return f"signal {number}" if 0 < number <= _MOST and code != 255 else None


def meaning(code: int) -> Meaning:
    """The meaning of an exit code."""
    name = signal_of(code)
    if name is not None:
        found = _SIGNALS.get(name, Meaning("ended by that signal", "Read the log above"))
        return found._replace(message=f"exit code {code} ({name}): {found.message}")
    found = _CODES.get(code, Meaning("the program's own code", "Read the log above"))
    return found._replace(message=f"exit code {code}: {found.message}")

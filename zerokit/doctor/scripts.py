"""Runs scripts in other Pythons, here and on other machines, and reads their answers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

_MARK = "zerokit:"
"""A script prints it before its answer, which is JSON."""


class Answer(NamedTuple):
    value: Any
    """None: there is none, or it is malformed."""
    exit_code: int
    error: str
    """The last line on stderr, else the exit code."""


def run_script(script: str, *words: str, patience: float, host: str = "") -> Answer:
    """Run a script with words, on `host` over ssh, without asking for a password.

    It imports nothing from the current folder, which may be untrusted.

    Raises:
        OSError: Python or ssh cannot be started.
        TimeoutExpired: of subprocess, after `patience` seconds.
    """
    command: Sequence[str] = [sys.executable, "-P", "-c", script, *words]
    if host:  # ssh passes one line to the remote shell
        command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, shlex.join(command)]
    done = subprocess.run(command, capture_output=True, timeout=patience, check=False, stdin=subprocess.DEVNULL)
    lines = done.stdout.decode(errors="replace").splitlines()
    text = next((line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)), "null")
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return Answer(value, done.returncode, errors[-1] if errors else f"exit code {done.returncode}")

"""Runs the processes that measure at the same time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack

from zerokit.choices import SAFE_PATH
from zerokit.errors import LaunchError
from zerokit.stop_signals import exit_on_signals
from zerokit.units import quantity


def run_ranks(commands: Sequence[Sequence[str]], limit_seconds: float) -> None:
    """Run a process for each command, and wait for all; no process outlives this call.

    Args:
        commands: the words of each; the environment variable `LOCAL_RANK` is its index.

    Raises:
        LaunchError: a rank failed, and the others were killed; or the time is up.
    """
    with exit_on_signals(), ThreadPoolExecutor(len(commands)) as pool, ExitStack() as started:
        ends = {}
        for rank, words in enumerate(commands):
            process = subprocess.Popen(words, env=os.environ | {SAFE_PATH: "1", "LOCAL_RANK": str(rank)})
            started.callback(_kill, process)
            ends[pool.submit(_wait, process)] = rank
        ended, running = wait(ends, limit_seconds, FIRST_EXCEPTION)
        for end in ended:
            if error := end.exception():
                raise LaunchError(
                    f"rank {ends[end]} of {len(commands)} {error}",
                    where="zerokit calibrate",
                    hint="Its error is above. '--ranks 1' measures one rank, without collectives",
                )
        if running:
            late = ", ".join(map(str, sorted(ends[end] for end in running)))
            raise LaunchError(
                f"these of {quantity(len(commands), 'rank')} did not end in {limit_seconds:g} s: {late}",
                where="zerokit calibrate",
                hint="Run nothing else meanwhile. '--ranks 1' measures one rank, without collectives",
            )


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends, in a thread of its own. RuntimeError if it failed."""
    code = process.wait()
    if code != 0:
        raise RuntimeError(f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()

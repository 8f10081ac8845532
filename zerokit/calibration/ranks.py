"""The processes that measure at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack

from zerokit.choices import SAFE_PATH
from zerokit.errors import LaunchError
from zerokit.signals import exit_on_signals
from zerokit.units import quantity


def run_ranks(commands: Sequence[Sequence[str]], limit_seconds: float) -> None:
    """Run a process for each command to its end; none of them outlives this.

    Args:
        commands: words; each process is told its place among them, its rank, as `LOCAL_RANK`.
        limit_seconds: for all of them together.

    Raises:
        LaunchError: a rank failed, and the others were ended; or the time is up.
    """
    with exit_on_signals(), ThreadPoolExecutor(len(commands)) as pool, ExitStack() as started:
        ends = {}
        for rank, words in enumerate(commands):
            process = subprocess.Popen(words, env=os.environ | {SAFE_PATH: "1", "LOCAL_RANK": str(rank)})
            started.callback(_end, process)
            ends[pool.submit(_checked, process)] = rank
        ended, running = wait(ends, limit_seconds, FIRST_EXCEPTION)
        for end in ended:
            if error := end.exception():
                raise LaunchError(
                    f"rank {ends[end]} of {len(commands)} {error}",
                    where="zerokit calibrate",
                    hint="What it says stands above. '--ranks 1' measures one alone, without collectives",
                )
        if running:
            late = ", ".join(map(str, sorted(ends[end] for end in running)))
            raise LaunchError(
                f"of {quantity(len(commands), 'rank')} these did not end in {limit_seconds:g} s: {late}",
                where="zerokit calibrate",
                hint="Let nothing else run meanwhile. '--ranks 1' measures one alone, without collectives",
            )


def _checked(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, in a thread of its own.

    Raises:
        RuntimeError: it failed.
    """
    code = process.wait()
    if code != 0:
        raise RuntimeError(f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()

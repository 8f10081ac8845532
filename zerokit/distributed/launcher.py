"""DeepSpeed's launcher, as this environment has it, and what it leaves to be done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.choices import SAFE_PATH
from zerokit.distributed.process_table import catches, descendants, stat_of, variables_of
from zerokit.distributed.ranks import free_port
from zerokit.errors import PreemptedError

if TYPE_CHECKING:
    from types import FrameType

_BIN = Path(sys.executable).parent
"""Where deepspeed lies: beside the Python that runs this, whether or not that is on the PATH."""


def deepspeed_words(num_ranks: int, *words: str, port: int = 0) -> list[str]:
    """The command line that starts `words`, a script or ``--module NAME`` with its options, on this machine.

    Args:
        num_ranks: processes to start.
        words: what they run.
        port: where they meet; 0: a free one, so that a run beside it is in nobody's way.

    Raises:
        LaunchError: the port is taken.
    """
    launcher = [str(_BIN / "deepspeed"), "--num_gpus", str(num_ranks), "--master_port", str(free_port(port))]
    return [*launcher, *words]


def run_launcher(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher to its end; what asks this process to leave asks its ranks.

    DeepSpeed's own ends at once by Ctrl-C or SIGTERM, whatever its ranks do then. In a session of its own it
    gets neither from a terminal, and ends when its ranks have, which save first. The second Ctrl-C or SIGTERM
    ends it. And there it may read the terminal, which stops a background group of the same session.

    Args:
        words: its command line.
        environment: all variables of it, but those that zerokit sets.

    Returns:
        its exit code; where a signal ended it, that of a shell for the signal, and so where this process was
        asked to leave and the run neither reached its end nor says that it left (:class:`PreemptedError`).
    """
    process = subprocess.Popen(words, env={**environment, SAFE_PATH: "1"}, start_new_session=True)
    asked: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        ranks = _ranks_of(process.pid) if len(asked) == 1 else []
        for pid in ranks:
            # One that saves before it ends has handlers for both, and says by which it was asked. Before that
            # Python alone handles Ctrl-C, and not while a rank waits in a collective.
            heeds = catches(pid, signal.SIGTERM)
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(pid, number if heeds else signal.SIGTERM)
        if not ranks:
            process.terminate()  # upon which they end, too

    def pause(number: int, frame: FrameType | None) -> None:
        send_to_all(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        send_to_all(signal.SIGCONT)

    def send_to_all(number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    for number, handler in ((signal.SIGTERM, hand_on), (signal.SIGINT, hand_on), (signal.SIGTSTP, pause)):
        signal.signal(number, handler)
    try:
        code = process.wait()
    finally:
        if process.returncode is None:  # no Ctrl-C would reach it any more
            send_to_all(signal.SIGTERM)
    if asked and code not in (0, PreemptedError.exit_code):
        return 128 + asked[0]
    return code if code >= 0 else 128 - code


def _ranks_of(launcher: int) -> list[int]:
    """The processes that it started as ranks, without those that ranks have started."""

    def is_rank(pid: int) -> bool:
        return "LOCAL_RANK" in variables_of(pid)

    found = {pid: stat for pid in descendants(launcher) if (stat := stat_of(pid)) is not None}
    return [pid for pid, stat in found.items() if is_rank(pid) and not is_rank(stat.parent)]

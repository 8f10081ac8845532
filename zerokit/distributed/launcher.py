"""DeepSpeed's launcher, as this environment has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zerokit.distributed.ranks import free_port

_BIN = Path(sys.executable).parent
"""Where deepspeed and ninja lie: beside the Python that runs this, whether or not that is on the PATH."""


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


def launch_environment() -> dict[str, str]:
    """This process's variables, with what DeepSpeed calls by name on the PATH."""
    return {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}"}

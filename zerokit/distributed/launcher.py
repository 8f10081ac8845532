"""DeepSpeed's launcher, as this environment has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zerokit.distributed.ranks import free_port

_BIN = Path(sys.executable).parent
"""Where deepspeed and ninja lie: beside the Python that runs this, whether or not that is on the PATH."""


def deepspeed_words(num_ranks: int, *words: str) -> list[str]:
    """The command line that starts `words`, a script or ``--module NAME`` with its options, on this machine.

    It has a port of its own, so that a run beside it is in nobody's way.
    """
    launcher = [str(_BIN / "deepspeed"), "--num_gpus", str(num_ranks), "--master_port", str(free_port())]
    return [*launcher, *words]


def launch_environment() -> dict[str, str]:
    """This process's variables, with what DeepSpeed calls by name on the PATH."""
    return {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}"}

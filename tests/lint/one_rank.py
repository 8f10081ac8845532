"""A world of one rank on the CPU, for scripts that give configs to DeepSpeed itself."""

from __future__ import annotations

import os

from zerokit.distributed.extensions import choose_extensions_folder, compile_extensions
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import free_port, read_ranks


def open_world() -> None:
    """Say what a launcher would, and compile what DeepSpeed needs here; others may compile it as well."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    choose_extensions_folder()
    compile_extensions(RankGroup(read_ranks()), cpu_optimizer="Adam")

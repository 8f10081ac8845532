"""Whether every rank holds the whole model, or ZeRO-3 partitions it among the ranks."""

from __future__ import annotations

from zerokit import console
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.generation.ds_config import Engine
from zerokit.generation.model import ModelFiles
from zerokit.generation.options import Options
from zerokit.hardware.host_memory import host_memory_bytes
from zerokit.units import format_bytes

_SHARE = 0.5
"""Share of the free memory that weights may take; the rest is for the key-value cache and workspace."""


def choose_mode(group: RankGroup, engine: Engine, model: ModelFiles, options: Options) -> Engine:
    """Return the engine of the mode that the options name or, with ``auto``, that memory allows.

    All ranks choose the same. A full copy on every rank is faster: under ZeRO-3 each token gathers all
    weights. On one rank ZeRO-3 saves nothing.
    """
    if options.ds_config is not None or options.mode == "sharded":
        return engine
    if options.mode == "replicated" or group.ranks.world_size == 1:
        return engine.replicated()
    if model.num_parameters is None:  # quantized: ZeRO-3 cannot partition such weights
        return engine.replicated()
    import torch

    weights = model.num_parameters * int(getattr(torch, engine.dtype).itemsize)
    free = min(group.gather_objects(_free_bytes(group.ranks)))
    fits = weights <= _SHARE * free
    if group.ranks.is_main:
        sizes = f"{format_bytes(weights)} of weights, {format_bytes(free)} free per rank"
        chosen = "replicated, a full copy on every rank" if fits else "sharded, ZeRO-3 partitions the weights"
        console.note(f"zerokit: mode {chosen} ({sizes})")
    return engine.replicated() if fits else engine


def _free_bytes(ranks: Ranks) -> int:
    """Return the free memory of this rank's GPU or, on CPUs, its part of the machine's."""
    import torch
    from deepspeed.accelerator import get_accelerator

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info(ranks.local_rank)[0])
    return int(min(get_accelerator().available_memory(), host_memory_bytes())) // ranks.local_world_size

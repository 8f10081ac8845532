"""Guesses of GPU memory that the replay does not count: fragmentation, CUDA context, NCCL.

`zerokit rehearse` knows the process groups and adds the same in more detail
(zerokit/rehearsal/report/analysis.py).
"""

from __future__ import annotations

from dataclasses import replace

from zerokit.hardware.non_torch_memory import (
    CUDA_CONTEXT,
    NCCL_CONNECTION,
    NCCL_FEW_CHANNELS,
    NCCL_FIRST_COMMUNICATOR_HIGH,
    NCCL_ONE_GPU_HIGH,
)
from zerokit.memory.term import Term, kinds_of

KINDS = kinds_of(__file__)

_FRAGMENTATION = 0.12
"""Share of the peak that the allocator may reserve in addition. This guess was not compared with rehearsals;
a full GPU makes the allocator release its cache."""

UNCHECKED_ACTIVATIONS = (0.65, 1.7)
"""Range of the factor of activations that were not compared, as found for encoder-decoders, DeBERTa and Gemma
3 with images (tests/memory/test_activations.py)."""

UNCHECKED_REST = (0.98, 1.02)
"""The same for everything else: allocator blocks and DeepSpeed's buffers."""

FRAGMENTATION = replace(KINDS.FRAGMENTATION, count=f"up to {_FRAGMENTATION:.0%} of the peak")


def overhead_terms(peak_bytes: int, world_size: int) -> tuple[Term, ...]:
    """Terms to add to the peak of torch's allocator; `bytes` is the minimum."""
    nccl = (
        (0, NCCL_ONE_GPU_HIGH)
        if world_size == 1
        else (NCCL_FEW_CHANNELS * NCCL_CONNECTION, NCCL_FIRST_COMMUNICATOR_HIGH)
    )
    bounds = (
        (FRAGMENTATION, (0, round(_FRAGMENTATION * peak_bytes))),
        (KINDS.CONTEXT, CUDA_CONTEXT),
        (KINDS.NCCL, nccl),
    )
    return tuple(kind.term("always", {1: low}, high_bytes=high) for kind, (low, high) in bounds)

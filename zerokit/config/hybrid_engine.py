"""The section `hybrid_engine`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from zerokit.config.base import Positive, Reader, Section
from zerokit.config.conditions import Acts


class HybridEngine(Section):
    """One engine for training and generation, as reinforcement learning from human feedback needs."""

    read_by: ClassVar[Reader] = "model"
    switch = "enabled"

    enabled: bool = False
    """Use the hybrid engine. Default false."""

    max_out_tokens: Positive = 512
    """Tokens of the longest sequence, prompt included; sizes the cache. Default 512."""

    inference_tp_size: Positive = 1
    """Ranks that share the model while it generates. Default 1."""

    release_inference_cache: bool = False
    """Free the cache of keys and values after generation. Default false."""

    pin_parameters: Annotated[bool, Acts(3)] = True
    """Keep the gathered parameters for the whole of a generation. Default true."""

    tp_gather_partition_size: Annotated[Positive, Acts(3)] = 8
    """Layers gathered at once when `inference_tp_size` is above 1. Default 8."""

    enable_cuda_graph: Annotated[bool, Acts(since="0.19.6")] = False
    """Replay generation as a CUDA graph. Default false."""

"""The section `activation_checkpointing`."""

from __future__ import annotations

from zerokit.config.base import Positive, Section


class ActivationCheckpointing(Section):
    """Options of `deepspeed.checkpointing`, in every stage.

    They act only where a model calls `deepspeed.checkpointing.checkpoint`. Transformers models do not:
    they use PyTorch's checkpointing, which the Trainer argument `gradient_checkpointing` turns on.
    """

    partition_activations: bool = False
    """Split each kept activation among the tensor-parallel ranks. Default false."""

    contiguous_memory_optimization: bool = False
    """Copy kept activations into one buffer; needs `partition_activations` and `number_checkpoints`.
    Default false."""

    cpu_checkpointing: bool = False
    """Keep activations in the host's memory; needs `partition_activations`. Default false."""

    number_checkpoints: Positive | None = None
    """How many checkpoints one forward pass makes; sizes the contiguous buffer. Default none."""

    synchronize_checkpoint_boundary: bool = False
    """Synchronise the device at each checkpoint. Default false."""

    profile: bool = False
    """Time the forward and backward pass of each checkpoint. Default false."""

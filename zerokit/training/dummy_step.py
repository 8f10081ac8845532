"""Undo the step that DeepSpeed takes before the first one."""

from __future__ import annotations

from typing import Any

import torch

from zerokit.patches import PrivateAttribute

_FUSED = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer"
_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_READ = tuple(
    PrivateAttribute(owner, name, "undo the step that DeepSpeed takes before the first one")
    for owner, names in (
        (_FUSED, ("fp32_groups_flat", "fp16_groups_flat", "initialize_optimizer_states")),
        (_UNFUSED, ("fp32_groups", "fp16_groups", "initialize_optimizer_states")),
    )
    for name in names
)


def undo_dummy_step(optimizer: Any) -> None:
    """Bring a 16-bit optimizer without ZeRO back to where Adam begins.

    DeepSpeed 0.19.8 allocates its states with a step on zero gradients (``initialize_optimizer_states``
    in runtime/fp16/unfused_optimizer.py and fused_optimizer.py). That step counts: Adam's bias correction
    starts at 2, so that the first updates are a quarter too small, and the master weights have decayed
    once. The optimizers of ZeRO 1 to 3 do not do so.

    Args:
        optimizer: the engine's; any but those two is left alone.
    """
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    if isinstance(optimizer, FP16_Optimizer):
        masters, weights = optimizer.fp32_groups_flat, optimizer.fp16_groups_flat
    elif isinstance(optimizer, FP16_UnfusedOptimizer):
        masters = [master for group in optimizer.fp32_groups for master in group]
        weights = [weight for group in optimizer.fp16_groups for weight in group]
    else:
        return
    inner = optimizer.optimizer
    for holder in (*inner.state.values(), *inner.param_groups):
        if "step" in holder:
            # A tensor in torch's optimizers, a number in DeepSpeed's.
            holder["step"] = holder["step"] * 0
    with torch.no_grad():
        for master, weight in zip(masters, weights, strict=True):
            master.copy_(weight)

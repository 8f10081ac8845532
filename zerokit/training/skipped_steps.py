"""Skips steps of DeepSpeed's optimizers, the same on all ranks.

A skipped step changes no weight, optimizer state, learning rate or loss scale, and clears all gradients. Each
DeepSpeed optimizer keeps gradients in its own buffers, so it clears them as after an overflow in fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from zerokit.patches import Patch, PrivateAttribute, declare, replace

if TYPE_CHECKING:
    from accelerate import Accelerator

_PURPOSE = "leave out a step"
_FUSED = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer"
_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_STAGE_1_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_STAGE_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_UPDATE_SCALE = [Patch(owner, "_update_scale", _PURPOSE) for owner in (_STAGE_1_2, _STAGE_3, _FUSED, _UNFUSED)]
"""ZeRO calls it after it has checked for overflow, before it handles it."""
_MUON = Patch(_STAGE_3, "_apply_muon_to_accumulated_grads", _PURPOSE)
_OF_BF16 = declare(
    "deepspeed.runtime.bf16_optimizer:BF16_Optimizer", "clear_hp_grads", "clear_lp_grads", purpose=_PURPOSE
)
_OF_FP16 = [Patch(owner, "_skip_invalid_grad_norm", _PURPOSE) for owner in (_FUSED, _UNFUSED)]
_BACKWARD = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "backward", _PURPOSE)
_LOOKS = PrivateAttribute(_STAGE_1_2, "check_grad_overflow", "know gradients that are no numbers in bf16")
# Declared only to be registered: see PrivateAttribute.
PrivateAttribute(
    "accelerate.utils.deepspeed:DeepSpeedOptimizerWrapper",
    "__has_overflow__",
    "keep the learning rate where a step is left out",
)


class SkippableSteps:
    """Decides before each step of an engine's optimizer whether to skip it.

    ``optimizer.overflow`` is true after a skipped step, also if DeepSpeed skipped it.
    """

    def __init__(self, engine: Any, accelerator: Accelerator, leaves_out: Callable[[torch.Tensor], bool]) -> None:
        """Patch the engine. `leaves_out` gets the last loss, and returns the same on every rank."""
        self._optimizer = optimizer = engine.optimizer
        self._skips_step = leaves_out
        self._loss: torch.Tensor | None = None
        """Loss of the last micro batch."""
        self._leaves_out = False
        """Whether the current step is skipped."""
        self._is_plain = not hasattr(optimizer, "overflow")
        """Whether it is PyTorch's own optimizer."""
        if self._is_plain:  # DeepSpeed and accelerate read it
            optimizer.overflow = False
            for wrapper in accelerator._optimizers:
                wrapper.__has_overflow__ = True
        if hasattr(optimizer, _LOOKS.name):
            optimizer.check_grad_overflow = True
        replace(engine, _BACKWARD.name, self._keep_loss)
        replace(optimizer, "step", self._decide)
        instead = ((_UPDATE_SCALE[0].name, self._overflow), (_MUON.name, lambda *_: None))
        for name, other in instead:
            if hasattr(optimizer, name):
                replace(optimizer, name, partial(self._instead, other))

    def _keep_loss(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def noted(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._loss = loss.detach()
            return backward(loss, *args, **kwargs)

        return noted

    def _decide(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            if self._is_plain:
                self._optimizer.overflow = not _are_numbers(self._optimizer)  # reduced: alike on every rank
            assert self._loss is not None
            self._leaves_out = self._skips_step(self._loss)
            if self._leaves_out:
                self._clear(step)
                self._leaves_out = False
                self._overflow()
            elif not (self._is_plain and self._optimizer.overflow):
                return step(*args, **kwargs)
            return None

        return stepped

    def _instead(self, other: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
        """Calls `other` in a skipped step, else `usual`."""
        return lambda *args, **kwargs: (other if self._leaves_out else usual)(*args, **kwargs)

    def _overflow(self, *_: Any) -> None:
        self._optimizer.overflow = True

    def _clear(self, step: Callable[..., Any]) -> None:
        """Clear all gradients; for PyTorch's optimizers the engine does it."""
        optimizer = self._optimizer
        if hasattr(optimizer, _OF_FP16[0].name):
            optimizer._skip_invalid_grad_norm()
        elif hasattr(optimizer, _OF_BF16[0].name):
            optimizer.clear_hp_grads()
            optimizer.clear_lp_grads()
        elif hasattr(optimizer, _UPDATE_SCALE[0].name):
            step()


def _are_numbers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all gradients are finite. A sum needs no memory, and one wait for the device."""
    gradients = (weight.grad for group in optimizer.param_groups for weight in group["params"])
    sums = [gradient.sum(dtype=torch.float32) for gradient in gradients if gradient is not None]
    return not sums or bool(torch.stack(sums).isfinite().all())

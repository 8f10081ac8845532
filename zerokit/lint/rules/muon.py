"""The optimizer Muon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import ZERO
from zerokit.lint.optimizer_facts import (
    default_clipping,
    optimizer_name,
    wraps_in_bf16_optimizer,
)
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("optimizer")
_LARGE_FOR_ADAM = 5e-3
"""A learning rate at which Adam is unlikely to train embeddings and norms."""


def _muon(stage: int, /, *, zero: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A config for an example."""
    params = keys.pop("params", {"muon_lr": 0.02, "adam_lr": 3e-4})
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        **keys,
        "optimizer": {"type": "Muon", "params": params},
        ZERO: {"stage": stage, **(zero or {})},
    }


@rule("muon-clipping", severity="warning", bad=_muon(2, gradient_clipping=1.0), good=_muon(2))
def muon_clipping(subject: Subject) -> Iterator[Hit]:
    """Gradient clipping that cuts Muon's updates

    Under ZeRO the gradients are made into Muon's updates before their norm is taken, so that
    `gradient_clipping` bounds the updates. The update of a matrix is orthogonal: its norm is the root of its
    smaller side, whatever the gradient. For 200 matrices of 4096 x 4096 the norm is about 900 at every step,
    and clipping at 1.0 divides the learning rate of Muon's half by as much. The default is 1.0 since
    DeepSpeed 0.19.3.

    Without ZeRO, and with the optimizer that stage 1 has for bf16 with gradients in fp32, clipping comes
    first and does no harm.

    Source: `get_flat_partition` and `step` in `deepspeed/runtime/zero/stage_1_and_2.py`,
    `_apply_muon_to_accumulated_grads` in `deepspeed/runtime/zero/stage3.py`; measured with DeepSpeed 0.19.8.
    """
    clipping = subject.value("gradient_clipping")
    if optimizer_name(subject) != "muon" or subject.stage not in (1, 2, 3) or not clipping:
        return
    set_ = subject.is_set("gradient_clipping")
    if wraps_in_bf16_optimizer(subject) or not (set_ or default_clipping(subject)):
        return
    by_default = "" if set_ else ", its default,"
    message = (
        f"'gradient_clipping' {clipping:g}{by_default} cuts Muon's updates under ZeRO, not the gradients"
    )
    place: tuple[str, ...] = ("gradient_clipping",) if set_ else ("optimizer",)
    yield Hit(place, message, 'Set "gradient_clipping" to 0')

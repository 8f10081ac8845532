"""The optimizer Muon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import ZERO
from zerokit.findings import Remove, SetValue
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    default_clipping,
    optimizer_argument,
    optimizer_name,
    wraps_in_bf16_optimizer,
)
from zerokit.lint.rule import Hit, Rules, unused_key
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


@rule("muon-reduce-scatter", stops=True, bad=_muon(3), good=_muon(3, zero={"reduce_scatter": False}))
def muon_reduce_scatter(subject: Subject) -> Iterator[Hit]:
    """Muon in stage 3 with scattered gradients

    Muon works on whole matrices. Stage 3 gives each rank its share of the gradients by `reduce_scatter`,
    which is true by default, and quantised gradients travel in a group of their own; it refuses both with
    Muon once the model is loaded.

    Source: `DeepSpeedZeroOptimizer_Stage3.__init__` in `deepspeed/runtime/zero/stage3.py`.
    """
    if optimizer_name(subject) != "muon" or subject.stage != 3:
        return
    path = (ZERO, "reduce_scatter")
    if subject.value(*path) is True:
        by_default = "" if subject.is_set(*path) else ", as it is by default"
        message = f"ZeRO stage 3 refuses Muon while 'reduce_scatter' is true{by_default}"
        place = path if subject.is_set(*path) else (ZERO,)
        yield Hit(place, message, 'Set "reduce_scatter" to false', (SetValue(path, False),))
    quantized = (ZERO, "zero_quantized_gradients")
    if subject.value(*quantized) is True:
        message = "ZeRO stage 3 refuses Muon with 'zero_quantized_gradients'"
        yield Hit(quantized, message, "Remove the key", (Remove(quantized),))


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


@rule(
    "muon-learning-rate",
    severity="warning",
    bad=_muon(2, params={"lr": 0.02}),
    good=_muon(2, params={"lr": 0.02, "adam_lr": 3e-4}),
)
def muon_learning_rate(subject: Subject) -> Iterator[Hit]:
    """One learning rate for Muon and for its Adam

    DeepSpeed's Muon trains matrices; embeddings, norms and biases get Adam. `lr` holds for both, though they
    want quite different ones: the defaults are 0.02 and 0.0003. `muon_lr` and `adam_lr` set them apart.

    Source: `_muon_half_defaults` in `deepspeed/runtime/engine.py`, `MuonWithAuxAdam` in
    `deepspeed/runtime/zero/muon/original_muon.py`.
    """
    if optimizer_name(subject) != "muon" or not subject.is_absent(*OPTIMIZER, "adam_lr"):
        return
    rate, path = optimizer_argument(subject, "lr"), (*OPTIMIZER, "lr")
    if isinstance(rate, int | float) and rate >= _LARGE_FOR_ADAM:
        message = f"'lr' {rate:g} is also that of the Adam which trains embeddings, norms and biases"
        yield Hit(path, message, 'Add "adam_lr", such as 3e-4')


@rule(
    "muon-buffer-unused",
    severity="warning",
    bad={
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        ZERO: {"stage": 3, "save_muon_momentum_buffer_in_memory": True},
    },
    good=_muon(3, zero={"reduce_scatter": False, "save_muon_momentum_buffer_in_memory": True}),
)
def muon_buffer_unused(subject: Subject) -> Iterator[Hit]:
    """A buffer for Muon's momentum without Muon

    `save_muon_momentum_buffer_in_memory` is read only if the optimizer is Muon.

    Source: the uses of `save_muon_momentum_buffer_in_memory` in `deepspeed/runtime/zero/stage3.py`.
    """
    yield from unused_key(subject, (ZERO, "save_muon_momentum_buffer_in_memory"), whatever_stage=True)

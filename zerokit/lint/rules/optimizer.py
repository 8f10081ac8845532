"""The optimizer, wherever its states are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.findings import Edit, SetValue
from zerokit.lint.examples import ONE_SAMPLE
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    default_clipping,
    optimizer_argument,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    rate_of_schedule,
    spec,
    wraps_in_bf16_optimizer,
)
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("optimizer")
_UNTESTED = "zero_allow_untested_optimizer"


def with_optimizer(kind: str, stage: int = 0, /, **params: Any) -> dict[str, Any]:
    """A config for an example."""
    return {**ONE_SAMPLE, "optimizer": {"type": kind, "params": params}, ZERO: {"stage": stage}}


@rule(
    "adam-is-adamw",
    severity="info",
    bad=with_optimizer("Adam", lr=1e-4, weight_decay=0.1),
    good=with_optimizer("AdamW", lr=1e-4, weight_decay=0.1),
)
def adam_is_adamw(subject: Subject) -> Iterator[Hit]:
    """'Adam' that applies weight decay as AdamW does

    DeepSpeed's `adam_w_mode` is true by default, and it holds for the type `Adam` too: weight decay is taken
    off the weights and is not added to the gradient. So `Adam` and `AdamW` are one and the same unless
    `adam_w_mode` is false, also with `torch_adam`. Results differ from those of `torch.optim.Adam` with the
    same numbers.

    Write the type that is meant: `AdamW`, or `Adam` with `"adam_w_mode": false`.

    Source: `_configure_basic_optimizer` and `ADAM_W_MODE_DEFAULT` in `deepspeed/runtime/engine.py` and
    `deepspeed/runtime/config.py`.
    """
    decay = subject.written_value(*OPTIMIZER, "weight_decay")
    silent = subject.is_absent(*OPTIMIZER, "adam_w_mode")
    if optimizer_name(subject) == "adam" and decay and silent:
        amount = "" if decay == AUTO else f" {decay:g}"
        message = f"'Adam' applies 'weight_decay'{amount} as AdamW does, for 'adam_w_mode' is true by default"
        hint = 'Write "AdamW", or add "adam_w_mode": false to "params"'
        yield Hit(("optimizer", "type"), message, hint)


@rule(
    "untested-optimizer",
    stops=True,
    bad=with_optimizer("SGD", 2, lr=0.1),
    good={**with_optimizer("SGD", 2, lr=0.1), _UNTESTED: True},
)
def untested_optimizer(subject: Subject) -> Iterator[Hit]:
    """An optimizer that ZeRO accepts only with `zero_allow_untested_optimizer`

    ZeRO knows Adam, AdamW, Adagrad, Lion and Muon. With any other it stops once the model is loaded: "You
    are using an untested ZeRO Optimizer". Those that treat each number by itself, such as SGD and RMSprop,
    work well on ZeRO's flat partitions; `zero_allow_untested_optimizer` says that you know.

    The Trainer and accelerate set that key only if the optimizer is *not* in the file.

    Source: `ZERO_SUPPORTED_OPTIMIZERS` in `deepspeed/runtime/zero/utils.py`, `_do_optimizer_sanity_check` in
    `deepspeed/runtime/engine.py`.
    """
    optimizer = spec(subject)
    if optimizer is None or optimizer.zero_supports or optimizer.step_fails or subject.stage not in (1, 2, 3):
        return
    if subject.config.zero_allow_untested_optimizer or subject.is_uncertain(_UNTESTED):
        return
    message = f"ZeRO refuses '{optimizer_type(subject)}' unless '{_UNTESTED}' is true"
    fix: tuple[Edit, ...] = ()
    if optimizer.needs_whole_tensors:
        hint = "Use AdamW, or ZeRO stage 0"
    else:
        hint, fix = f'Add "{_UNTESTED}": true', (SetValue((_UNTESTED,), True),)
    yield Hit(("optimizer", "type"), message, hint, fix)


@rule(
    "whole-tensor-optimizer",
    severity="warning",
    bad={**with_optimizer("Lamb", 1, lr=1e-3), _UNTESTED: True},
    good=with_optimizer("Lamb", 0, lr=1e-3),
)
def whole_tensor_optimizer(subject: Subject) -> Iterator[Hit]:
    """An optimizer that needs whole tensors, under ZeRO

    ZeRO hands the optimizer one flat partition per group of parameters, in which layers have neither a shape
    nor a beginning. Lamb then computes one trust ratio for all that a rank holds, instead of one per layer,
    and the result depends on the number of GPUs. Adafactor finds no rows and columns to factor, and its
    states take as much memory as Adam's second moment.

    Source: `FusedLamb` in `deepspeed/ops/lamb/fused_lamb.py`; `torch.optim.Adafactor`, which factors tensors
    of two dimensions only; `single_partition_of_fp32_groups` in
    `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    optimizer = spec(subject)
    if optimizer is not None and optimizer.needs_whole_tensors and subject.stage in (1, 2, 3):
        reason = optimizer.needs_whole_tensors
        message = f"'{optimizer_type(subject)}' {reason}, and ZeRO hands it one flat piece of all layers"
        yield Hit(("optimizer", "type"), message, "Use AdamW, or ZeRO stage 0")


@rule(
    "optimizer-step", stops=True, bad=with_optimizer("LBFGS", lr=0.1), good=with_optimizer("AdamW", lr=1e-3)
)
def optimizer_step(subject: Subject) -> Iterator[Hit]:
    """An optimizer whose step DeepSpeed cannot call

    DeepSpeed finds any class of `torch.optim` by its name, and calls `step()` without arguments and with
    dense gradients. `LBFGS` needs a function to evaluate the loss again; `SparseAdam` takes sparse gradients
    alone. Both fail at the first step, after the model has been loaded and a batch has gone through it.

    Source: `_take_model_step` in `deepspeed/runtime/engine.py`; the `step` of the two classes in PyTorch.
    """
    optimizer = spec(subject)
    if optimizer is not None and optimizer.step_fails:
        message = f"'{optimizer.name}' fails at the first step: {optimizer.step_fails}"
        yield Hit(("optimizer", "type"), message, "Use another optimizer, such as AdamW")


@rule(
    "learning-rate",
    severity="warning",
    bad=with_optimizer("AdamW", lr=1000),
    good=with_optimizer("AdamW", lr=1e-4),
)
def learning_rate(subject: Subject) -> Iterator[Hit]:
    """An implausible learning rate

    DeepSpeed takes any number. One above 1 makes optimizers of Adam's kind leap farther than weights are
    large; with 1000 the loss is 2e14 after three steps. With 0, and no schedule that sets another, nothing
    is learned.

    Source: DeepSpeed checks no learning rate; measured with DeepSpeed 0.19.8.
    """
    optimizer = spec(subject)
    if optimizer is None:
        return
    for key in ("lr", "muon_lr", "adam_lr"):
        if not subject.is_set(*OPTIMIZER, key):
            continue
        rate, path = optimizer_argument(subject, key), (*OPTIMIZER, key)
        if not isinstance(rate, int | float):
            continue
        if rate > optimizer.largest_rate:
            message = f"'{key}' is {rate:g}, far beyond what '{optimizer_type(subject)}' can use"
            yield Hit(path, message, "Write a rate such as 1e-4")
        elif rate == 0 and rate_of_schedule(subject) is None and not subject.is_uncertain("scheduler"):
            message = f"'{key}' is 0 and no schedule sets another rate, so that nothing is learned"
            yield Hit(path, message, "Write a rate such as 1e-4")


@rule(
    "default-learning-rate",
    severity="warning",
    bad=with_optimizer("AdamW", weight_decay=0.1),
    good=with_optimizer("AdamW", lr=2e-5, weight_decay=0.1),
)
def default_learning_rate(subject: Subject) -> Iterator[Hit]:
    """An optimizer without a learning rate

    Without `lr` the class's own default holds, 0.001 for Adam: some fifty times what fine-tuning a large
    model takes. Under the Trainer, `learning_rate` is not used either: it replaces "auto" and is compared
    with a number, but nothing happens to a key that is absent.

    Source: the constructors named in `_configure_basic_optimizer` in `deepspeed/runtime/engine.py`;
    `fill_match` in transformers `integrations/deepspeed.py`.
    """
    optimizer, params = spec(subject), optimizer_params(subject)
    if optimizer is None or optimizer.step_fails or params is None or subject.is_uncertain("scheduler"):
        return
    is_muon = optimizer.name == "Muon"
    keys = ("muon_lr", "adam_lr", "lr") if is_muon else ("lr",)
    if not all(subject.is_absent(*OPTIMIZER, key) for key in keys) or rate_of_schedule(subject) is not None:
        return
    default = params.get("lr")
    if default is None and not is_muon:
        return  # the constructors of the library mup have none
    rate = "0.02 for matrices and 0.0003 for the rest" if is_muon else f"{default:g}"
    message = f"'lr' is absent, so '{optimizer_type(subject)}' runs with its default, {rate}"
    hint = 'Add "lr" to "params"'
    if subject.run.target == "trainer":
        message += ", whatever the Trainer's learning_rate says"
        hint = 'Add "lr": "auto" to "params"'
    place = OPTIMIZER if subject.is_set(*OPTIMIZER) else ("optimizer",)
    yield Hit(place, message, hint)


@rule(
    "betas-order",
    severity="warning",
    bad=with_optimizer("AdamW", lr=1e-4, betas=[0.999, 0.9]),
    good=with_optimizer("AdamW", lr=1e-4, betas=[0.9, 0.999]),
)
def betas_order(subject: Subject) -> Iterator[Hit]:
    """Betas in the wrong order

    The first of `betas` is for the average of the gradient, the second for that of its square, which is
    meant to change more slowly. The other way round Adam need not converge: a large gradient moves the
    weights for many steps after its square has been forgotten.

    Source: Kingma and Ba, "Adam", whose proof needs the first to be below the root of the second.
    """
    betas = optimizer_argument(subject, "betas")
    if optimizer_name(subject) is not None and isinstance(betas, list) and betas[0] > betas[1]:
        message = f"'betas' are {betas}: the first, for the gradient, is larger than the second"
        yield Hit((*OPTIMIZER, "betas"), message, "Swap them")


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

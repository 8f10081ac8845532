"""The optimizer, wherever its states are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.findings import Edit, SetValue
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.optimizer_facts import OPTIMIZER, optimizer_name, optimizer_type, spec
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("optimizer")
_UNTESTED = "zero_allow_untested_optimizer"


def with_optimizer(kind: str, stage: int = 0, /, **params: Any) -> dict[str, Any]:
    """A config for an example."""
    return {**ONE_SAMPLE, "optimizer": {"type": kind, "params": params}, ZERO: {"stage": stage}}


_LAMB_IN_BF16 = {**with_optimizer("Lamb", lr=1e-3), "bf16": {"enabled": True}}


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
    "script-optimizer",
    severity="info",
    bad=zero(2),
    good={**with_optimizer("AdamW", 2, lr=1e-4), ZERO: {"stage": 2}},
)
def script_optimizer(subject: Subject) -> Iterator[Hit]:
    """No optimizer in the file

    The script must then pass one to `deepspeed.initialize`; the Trainer and scripts of accelerate do.
    Without either, stages 1 and 2 stop when training starts, and stage 0 with an assertion that has no text,
    at the first step. Stage 3 treats it as a run without training.

    Source: `_configure_zero_optimizer` in `deepspeed/runtime/engine.py`, `get_grads_for_norm` in
    `deepspeed/runtime/bf16_optimizer.py`.
    """
    asked = subject.may_be_plain and subject.is_absent("optimizer")
    offloaded = subject.run.target == "deepspeed" and subject.offloads_optimizer
    if asked and not offloaded and subject.stage in (0, 1, 2):
        message = "no 'optimizer' is given, so the script must pass one to deepspeed.initialize"
        yield Hit((), message, 'Add "optimizer", unless the script makes one')


@rule("clipping-default", severity="info", bad=zero(2), good={**zero(2), "gradient_clipping": 1.0})
def clipping_default(subject: Subject) -> Iterator[Hit]:
    """Gradient clipping by default

    Since DeepSpeed 0.19.3 an absent `gradient_clipping` means 1.0; before it meant 0, no clipping. The same
    file trains differently after an upgrade, and differently from the run that it is to repeat.

    Write the number that is meant; 0 switches clipping off.

    Source: `GRADIENT_CLIPPING_DEFAULT` in `deepspeed/runtime/constants.py`.
    """
    if not subject.may_be_plain or subject.run.deepspeed_version is not None:
        return
    if subject.stage == 3 and subject.is_absent("optimizer"):
        return  # perhaps a run without training
    norm = subject.value(ZERO, "compute_grad_norm")
    if subject.is_absent("gradient_clipping") and norm is not False:
        message = "'gradient_clipping' is absent: DeepSpeed clips at 1.0 since 0.19.3, and did not before"
        yield Hit((), message, 'Add "gradient_clipping": 1.0, or 0 for none')

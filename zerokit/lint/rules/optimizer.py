"""The optimizer, wherever its states are."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import AUTO
from zerokit.findings import Edit, SetValue
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    optimizer_argument,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    rate_of_schedule,
    spec,
)
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_UNTESTED = "zero_allow_untested_optimizer"


@rule("adam-is-adamw")
def adam_is_adamw(subject: Subject) -> Iterator[Hit]:
    """'Adam' that applies weight decay as AdamW does"""
    decay = subject.written_value(*OPTIMIZER, "weight_decay")
    silent = subject.is_absent(*OPTIMIZER, "adam_w_mode")
    if optimizer_name(subject) == "adam" and decay and silent:
        amount = "" if decay == AUTO else f" {decay:g}"
        message = f"'Adam' applies 'weight_decay'{amount} as AdamW does, for 'adam_w_mode' is true by default"
        hint = 'Write "AdamW", or add "adam_w_mode": false to "params"'
        yield Hit(("optimizer", "type"), message, hint)


@rule("untested-optimizer")
def untested_optimizer(subject: Subject) -> Iterator[Hit]:
    """An optimizer that ZeRO accepts only with `zero_allow_untested_optimizer`"""
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


@rule("whole-tensor-optimizer")
def whole_tensor_optimizer(subject: Subject) -> Iterator[Hit]:
    """An optimizer that needs whole tensors, under ZeRO"""
    optimizer = spec(subject)
    if optimizer is not None and optimizer.needs_whole_tensors and subject.stage in (1, 2, 3):
        reason = optimizer.needs_whole_tensors
        message = f"'{optimizer_type(subject)}' {reason}, and ZeRO hands it one flat piece of all layers"
        yield Hit(("optimizer", "type"), message, "Use AdamW, or ZeRO stage 0")


@rule("optimizer-step")
def optimizer_step(subject: Subject) -> Iterator[Hit]:
    """An optimizer whose step DeepSpeed cannot call"""
    optimizer = spec(subject)
    if optimizer is not None and optimizer.step_fails:
        message = f"'{optimizer.name}' fails at the first step: {optimizer.step_fails}"
        yield Hit(("optimizer", "type"), message, "Use another optimizer, such as AdamW")


@rule("learning-rate")
def learning_rate(subject: Subject) -> Iterator[Hit]:
    """An implausible learning rate"""
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


@rule("default-learning-rate")
def default_learning_rate(subject: Subject) -> Iterator[Hit]:
    """An optimizer without a learning rate"""
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


@rule("betas-order")
def betas_order(subject: Subject) -> Iterator[Hit]:
    """Betas in the wrong order"""
    betas = optimizer_argument(subject, "betas")
    if optimizer_name(subject) is not None and isinstance(betas, list) and betas[0] > betas[1]:
        message = f"'betas' are {betas}: the first, for the gradient, is larger than the second"
        yield Hit((*OPTIMIZER, "betas"), message, "Swap them")

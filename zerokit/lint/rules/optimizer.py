"""The optimizer, wherever its states are."""

from collections.abc import Iterator

from zerokit.config.params import offload_only
from zerokit.findings import Edit, Remove
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
    yield Hit(subject.nearest_set(*OPTIMIZER), message, hint)


_CHANGES_RESULTS = frozenset({"lr_decay", "initial_accumulator_value", "maximize"})


@rule("optimizer-argument")
def optimizer_argument_place(subject: Subject) -> Iterator[Hit]:
    """An argument that the optimizer accepts only on the GPU, or only on the CPU"""
    params, offloaded, name = optimizer_params(subject), subject.offloads_optimizer, optimizer_name(subject)
    if params is None or offloaded is None or name is None:
        return
    for key in sorted(params.model_fields_set & offload_only(type(params), offloaded=not offloaded)):
        path = (*OPTIMIZER, key)
        fix: tuple[Edit, ...] = () if key in _CHANGES_RESULTS else (Remove(path),)
        where = "offloaded" if offloaded else "not offloaded"
        if path in subject.unused:
            yield Hit(path, f"'{key}' {subject.unused[path].reason}", "Remove the key", fix, "warning")
        elif key != "fp32_optimizer_states" or name not in ("adam", "adamw", "muon"):
            message = f"'{optimizer_type(subject)}' does not take '{key}' where it is {where}"
            hint = "Remove the key" if fix else "Remove the key, or do not offload the optimizer"
            yield Hit(path, message, hint, fix)

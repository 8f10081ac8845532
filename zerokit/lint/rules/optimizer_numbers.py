"""Numbers in the optimizer's `params`."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    optimizer_argument,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    rate_of_schedule,
    spec,
)
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.rules.optimizer import with_optimizer
from zerokit.lint.subject import Subject

rule = Rules("optimizer")


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

"""What the script may fill in: a config with each value that the file leaves to it.

A defect that depends on such a value is neither met nor ruled out by the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from zerokit.config.base import AUTO
from zerokit.config.load import load_valid_part
from zerokit.documents import Document, KeyPath, with_value
from zerokit.lint.number_formats import switch
from zerokit.lint.optimizer_facts import OPTIMIZER
from zerokit.lint.subject import Subject

Filling = tuple[str, Mapping[KeyPath, Any]]
"""What the script does, and the values that follow."""

_PRECISIONS: tuple[Filling, ...] = (
    ("trains in bf16", {("bf16", "enabled"): True, ("fp16", "enabled"): False}),
    ("trains in fp16", {("fp16", "enabled"): True, ("bf16", "enabled"): False}),
)
_NUMBERS: tuple[Filling, ...] = (
    ("accumulates gradients", {("gradient_accumulation_steps",): 2}),
    ("accumulates 3 or more micro batches", {("gradient_accumulation_steps",): 3}),
    ("clips gradients", {("gradient_clipping",): 1.0}),
    ("sets a learning rate other than 0.001", {(*OPTIMIZER, "lr"): 3e-5}),
)


def filled(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """The config with one or two of the values that the script fills, and what the script then does."""
    if subject.run.recipe is not None or subject.run.target == "deepspeed":
        return
    precisions = [one for one in _PRECISIONS if _may_train(subject, str(next(iter(one[1]))[0]))]
    numbers = [one for one in _NUMBERS if all(subject.is_set(*map(str, path), to=AUTO) for path in one[1])]
    yield from (_with(subject, one) for one in (*precisions, *numbers))
    yield from (_with(subject, *pair) for pair in product(precisions, numbers))


def _may_train(subject: Subject, section: str) -> bool:
    """Whether the file leaves it to the script to switch a precision on."""
    states = {name: switch(subject, name) for name in ("bf16", "fp16")}
    if states[section] is not None or True in states.values() or subject.is_uncertain(section, "enabled"):
        return False
    return subject.is_set(section) or not subject.may_be_plain


def _with(subject: Subject, *fillings: Filling) -> tuple[str, Subject]:
    data: Any = subject.written
    for path, value in (item for _, values in fillings for item in values.items()):
        data = with_value(data, path, value)
    valid = load_valid_part(Document(data, "ds_config"))
    assert valid.config is not None
    words = " and ".join(words for words, _ in fillings)
    return words, replace(subject, config=valid.config, written=valid.written)

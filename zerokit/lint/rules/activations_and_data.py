"""Activation checkpointing and data efficiency: sections that act only where a script takes part."""

from collections.abc import Iterator, Mapping

from zerokit.config.base import is_comment
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_ACTIVATIONS = ("activation_checkpointing",)
_DATA = ("data_efficiency",)
_SAMPLING = (*_DATA, "data_sampling")
_CURRICULUM = (*_SAMPLING, "curriculum_learning")
_BATCHING = (*_SAMPLING, "dynamic_batching")
_RANDOM_LTD = (*_DATA, "data_routing", "random_ltd")


@rule("activation-checkpointing")
def activation_checkpointing(subject: Subject) -> Iterator[Hit]:
    """Activation checkpointing that transformers' models do not use"""
    section = subject.written_value(*_ACTIVATIONS)
    if subject.run.target not in ("trainer", "accelerate") or not isinstance(section, Mapping):
        return
    on = [key for key, value in section.items() if not is_comment(key) and value is True]
    if on:
        how = "'gradient_checkpointing' of the Trainer"
        if subject.run.target == "accelerate":
            how = "model.gradient_checkpointing_enable()"
        message = f"transformers' models do not read '{on[0]}' here: it recomputes no activations"
        yield Hit((*_ACTIVATIONS, on[0]), message, f"Use {how}, and remove the section")


@rule("data-efficiency-switch")
def data_efficiency_switch(subject: Subject) -> Iterator[Hit]:
    """An outer `enabled` of `data_efficiency` that does not switch off the inner section"""
    for inner in (_CURRICULUM, _BATCHING, _RANDOM_LTD):
        if subject.value(*inner, "enabled") is not True:
            continue
        for outer in (inner[:-1], _DATA):
            path = (*outer, "enabled")
            if subject.written_value(*path) is False:
                message = f"'{outer[-1]}.enabled' false does not switch '{inner[-1]}' off"
                yield Hit(path, message, f"Set 'enabled' of '{inner[-1]}' to false, or this one to true")
                break

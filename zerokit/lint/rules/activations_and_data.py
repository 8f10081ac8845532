"""Activation checkpointing and data efficiency: sections that act only where a script takes part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerokit.config.base import is_comment
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("parallelism")
_ACTIVATIONS = ("activation_checkpointing",)
_DATA = ("data_efficiency",)
_SAMPLING = (*_DATA, "data_sampling")
_CURRICULUM = (*_SAMPLING, "curriculum_learning")
_BATCHING = (*_SAMPLING, "dynamic_batching")
_RANDOM_LTD = (*_DATA, "data_routing", "random_ltd")


@rule(
    "contiguous-checkpoints",
    severity="warning",
    bad={**zero(2), "activation_checkpointing": {"contiguous_memory_optimization": True}},
    good={
        **zero(2),
        "activation_checkpointing": {
            "partition_activations": True,
            "contiguous_memory_optimization": True,
            "number_checkpoints": 32,
        },
    },
)
def contiguous_checkpoints(subject: Subject) -> Iterator[Hit]:
    """Contiguous activation memory without its requirements

    `contiguous_memory_optimization` needs `partition_activations`, and `number_checkpoints` to know the
    buffer's size. `deepspeed.checkpointing.configure` asserts both; where the script does not call it, the
    section does nothing at all.

    Source: `configure` in `deepspeed/runtime/activation_checkpointing/checkpointing.py`.
    """
    path = (*_ACTIVATIONS, "contiguous_memory_optimization")
    if subject.value(*path) is not True:
        return
    missing = []
    if subject.value(*_ACTIVATIONS, "partition_activations") is False:
        missing.append('"partition_activations": true')
    if subject.is_absent(*_ACTIVATIONS, "number_checkpoints") or (
        subject.is_set(*_ACTIVATIONS, "number_checkpoints")
        and subject.written_value(*_ACTIVATIONS, "number_checkpoints") is None
    ):
        missing.append("'number_checkpoints'")
    if missing:
        message = f"'contiguous_memory_optimization' needs {' and '.join(missing)}"
        yield Hit(path, message, "Add what is missing, or remove the key")


@rule(
    "activation-checkpointing",
    severity="warning",
    bad={**zero(2), "activation_checkpointing": {"partition_activations": True}},
    good=zero(2),
    given={"target": "trainer"},
)
def activation_checkpointing(subject: Subject) -> Iterator[Hit]:
    """Activation checkpointing that transformers' models do not use

    The section sets options of `deepspeed.checkpointing.checkpoint`. It does not switch checkpointing on, and
    transformers' models do not call that function: they recompute activations with PyTorch's, which the
    Trainer's argument `gradient_checkpointing` and `model.gradient_checkpointing_enable()` switch on. Only
    models with code of their own, such as Megatron's, are concerned.

    Source: `deepspeed/runtime/activation_checkpointing/checkpointing.py`; transformers `modeling_utils.py`
    (`gradient_checkpointing_enable`).
    """
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


@rule(
    "data-efficiency-switch",
    bad={
        **zero(2),
        "data_efficiency": {
            "enabled": False,
            "data_sampling": {"dynamic_batching": {"enabled": True, "max_tokens": 4096}},
        },
    },
    good={
        **zero(2),
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {"enabled": True, "dynamic_batching": {"enabled": True, "max_tokens": 4096}},
        },
    },
)
def data_efficiency_switch(subject: Subject) -> Iterator[Hit]:
    """An outer switch without effect

    DeepSpeed reads `data_efficiency.enabled`, `data_sampling.enabled` and `data_routing.enabled`, and asks
    for none of them afterwards. Curriculum learning, dynamic batching and random layerwise token dropping
    each follow their own `enabled`, whatever the outer switches are.

    To switch one off, set its own `enabled` to false.

    Source: `curriculum_learning_enabled` and `random_ltd_enabled` in `deepspeed/runtime/engine.py`;
    `deepspeed/runtime/data_pipeline/config.py`.
    """
    for inner in (_CURRICULUM, _BATCHING, _RANDOM_LTD):
        if subject.value(*inner, "enabled") is not True:
            continue
        for outer in (inner[:-1], _DATA):
            path = (*outer, "enabled")
            if subject.written_value(*path) is False:
                message = f"'{outer[-1]}.enabled' false does not switch '{inner[-1]}' off"
                yield Hit(path, message, f"Set 'enabled' of '{inner[-1]}' to false, or this one to true")
                break

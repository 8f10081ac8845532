"""Conditions under which a config meets a defect, each with its words: what is shown is what is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.config.conditions import TORCH_FP32
from zerokit.documents import from_dotted
from zerokit.lint.optimizer_facts import (
    SCHEDULER,
    optimizer_name,
    schedule_name,
    torch_adam,
    wraps_in_bf16_optimizer,
)
from zerokit.lint.subject import Subject
from zerokit.lint.values_in_force import ZERO, in_force, is_set_to, offloads_optimizer


@dataclass(frozen=True)
class Condition:
    """Something that is so in a config, or is not. What is not certain does not hold."""

    words: str
    holds: Callable[[Subject], Any]
    counts_gpus: bool = False
    """Whether it holds where the number of GPUs is not known, for most runs have several."""

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.words}, {other.words}",
            lambda subject: self.holds(subject) and other.holds(subject),
            self.counts_gpus or other.counts_gpus,
        )

    def __or__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.words} or {other.words}",
            lambda subject: self.holds(subject) or other.holds(subject),
            self.counts_gpus or other.counts_gpus,
        )


def _path(name: str) -> tuple[str, ...]:
    return tuple(map(str, from_dotted(name)))


def stage(*stages: int) -> Condition:
    *first, last = map(str, stages)
    words = f"{', '.join(first)} or {last}" if first else last
    return Condition(f"ZeRO stage {words}", lambda subject: subject.stage in stages)


def on(name: str) -> Condition:
    """The key is true, by itself or by default."""
    return Condition(f"`{name}`", lambda subject: in_force(subject, *_path(name)) is True)


def off(name: str) -> Condition:
    """The key is false, by itself or by default."""
    return Condition(f"`{name}` false", lambda subject: in_force(subject, *_path(name)) is False)


def written(name: str, value: Any) -> Condition:
    """The file itself says so."""
    return Condition(
        f"`{name}` {str(value).lower()}", lambda subject: is_set_to(subject, value, *_path(name))
    )


def present(name: str) -> Condition:
    return Condition(f"`{name}`", lambda subject: subject.written_at(*_path(name)) is not None)


def absent(name: str) -> Condition:
    return Condition(f"no `{name}`", lambda subject: subject.lacks(*_path(name)))


def accumulates_over(steps: int) -> Condition:
    """More than so many micro batches, by the config or by the recipe where that is "auto"."""
    key = "gradient_accumulation_steps"

    def holds(subject: Subject) -> bool:
        count = in_force(subject, key)
        if count is None and is_set_to(subject, "auto", key):
            count = _training(subject, key)
        return isinstance(count, int) and count > steps

    return Condition(f"`{key}` above {steps}", holds)


def recipe_trains_with(argument: str) -> Condition:
    return Condition(
        f"`training.{argument}` in the recipe", lambda subject: _training(subject, argument) is True
    )


def _training(subject: Subject, name: str) -> Any:
    return None if subject.run.recipe is None else subject.run.recipe.training.get(name)


def optimizer(name: str) -> Condition:
    return Condition(f"the optimizer {name}", lambda subject: optimizer_name(subject) == name.lower())


def schedule(*names: str) -> Condition:
    return Condition(f"the schedule {' or '.join(names)}", lambda subject: schedule_name(subject) in names)


def _on_nvme(subject: Subject) -> bool:
    sections = (subject.offload_optimizer, subject.offload_param)
    return any(section is not None and section.device == "nvme" for section in sections)


def _fused_adam(subject: Subject) -> bool:
    plain = optimizer_name(subject) in ("adam", "adamw") and not torch_adam(subject)
    return plain and offloads_optimizer(subject) is False


def _more_than_an_int_counts(subject: Subject) -> bool:
    ranks = 1 if subject.stage == 0 else subject.cluster.num_gpus
    return (
        subject.run.model is not None
        and ranks is not None
        and subject.run.model.num_parameters // ranks > 2**31 - 1
    )


def _has_second_copies(subject: Subject) -> bool:
    size = in_force(subject, ZERO, "zero_hpz_partition_size")
    return isinstance(size, int) and size > 1


def _has_lists(subject: Subject) -> bool:
    params = subject.written_at(*SCHEDULER)
    return isinstance(params, Mapping) and any(isinstance(value, list) for value in params.values())


BF16 = Condition("bf16", on("bf16.enabled").holds)
FP16 = Condition("fp16", on("fp16.enabled").holds)
SEVERAL_GPUS = Condition(
    "more than one GPU",
    lambda subject: subject.cluster.num_gpus is None or subject.cluster.num_gpus > 1,
    counts_gpus=True,
)
OFFLOADED = Condition("`offload_optimizer`", offloads_optimizer)
NOT_OFFLOADED = Condition("no `offload_optimizer`", lambda subject: offloads_optimizer(subject) is False)
ON_NVME = Condition("offload to NVMe", _on_nvme)
FP32_GRADIENTS = Condition(
    "`data_types.grad_accum_dtype` fp32",
    lambda subject: in_force(subject, "data_types", "grad_accum_dtype") in TORCH_FP32,
)
BF16_OPTIMIZER = Condition(
    f"bf16, ZeRO stage 1, {FP32_GRADIENTS.words}, {NOT_OFFLOADED.words}", wraps_in_bf16_optimizer
)
CLIPS = Condition(
    "`gradient_clipping` above 0 in the file",
    lambda subject: subject.sets("gradient_clipping") and in_force(subject, "gradient_clipping"),
)
ADAPTERS = Condition(
    "`peft` in the recipe",
    lambda subject: subject.run.recipe is not None and subject.run.recipe.peft is not None,
)
SAVES_MODULES = Condition(
    "`peft.modules_to_save` in the recipe",
    lambda subject: subject.run.recipe is not None and (subject.run.recipe.peft or {}).get("modules_to_save"),
)
EXPERTS = Condition(
    "a mixture of experts",
    lambda subject: subject.run.model is not None and subject.run.model.experts is not None,
)
FUSED_ADAM = Condition("DeepSpeed's Adam or AdamW on the GPU", _fused_adam)
OTHER_THAN_FUSED_ADAM = Condition(
    "an optimizer other than DeepSpeed's Adam or AdamW on the GPU", lambda subject: not _fused_adam(subject)
)
MORE_THAN_AN_INT_COUNTS = Condition("more than 2^31 - 1 parameters on a GPU", _more_than_an_int_counts)
SECOND_COPIES = Condition(f"`{ZERO}.zero_hpz_partition_size` above 1", _has_second_copies)
LISTS = Condition("lists among `scheduler.params`", _has_lists)

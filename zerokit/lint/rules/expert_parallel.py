"""Automatic expert parallelism (AutoEP)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import ZERO
from zerokit.config.expert_parallel import ExpertParallel
from zerokit.lint.examples import Facts, mixture_of_experts, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject, autotp_size

rule = Rules("parallelism")
_SECTION = ("expert_parallel",)


def _with(**keys: Any) -> dict[str, Any]:
    return {**zero(1), "expert_parallel": {"enabled": True, **keys}}


def _enabled(subject: Subject) -> ExpertParallel | None:
    section = subject.config.expert_parallel
    return section if section is not None and section.enabled else None


@rule(
    "expert-parallel-experts",
    stops=True,
    bad=_with(autoep_size=3),
    good=_with(autoep_size=8),
    given=Facts(model=mixture_of_experts),
    needs=("model",),
)
def expert_parallel_experts(subject: Subject) -> Iterator[Hit]:
    """An expert-parallel size that does not divide the number of experts

    Each rank holds equally many whole experts, so `autoep_size` has to divide their number. DeepSpeed refuses
    it otherwise once it has inspected the model's layers. A dense model has none to divide.

    Source: `validate_autoep_post_detection` in `deepspeed/module_inject/auto_ep_config.py`.
    """
    section, model = _enabled(subject), subject.run.model
    if section is None or model is None:
        return
    if model.experts is None:
        message = f"'expert_parallel' is enabled, and '{model.model_type}' has no experts"
        yield Hit(_SECTION, message, "Remove the section", (), "warning")
        return
    experts = model.experts.num_experts
    if experts % section.autoep_size:
        message = f"'autoep_size' {section.autoep_size} does not divide the model's {experts} experts"
        yield Hit((*_SECTION, "autoep_size"), message, f"Choose a divisor of {experts}")


@rule(
    "expert-parallel-combination",
    stops=True,
    bad=_with(autoep_size=2, expert_tensor_parallel_size=2),
    good=_with(autoep_size=2),
)
def expert_parallel_combination(subject: Subject) -> Iterator[Hit]:
    """Expert parallelism with options that it refuses

    DeepSpeed refuses these when training starts:

    - `expert_tensor_parallel_size` other than 1, which is reserved;
    - together with tensor parallelism (`autotp_size` above 1): `autoep_size` 1, optimizer or parameter
      offload sections, DeepCompile, `use_data_before_expert_parallelism`, `async_split_plan`, and
      `combine_impl` "fused_weighted_sum";
    - presets for tensor and expert parallelism that differ;
    - in stage 3: `zero_quantized_gradients`, `zero_hpz_partition_size` above 1.

    Source: `validate_autoep_config` in `deepspeed/module_inject/auto_ep_config.py`,
    `validate_folding_global` in `deepspeed/module_inject/auto_ep_folding.py`,
    `_validate_zero3_moe_compatibility` in `deepspeed/runtime/engine.py`.
    """
    section = _enabled(subject)
    if section is None:
        return
    if section.expert_tensor_parallel_size != 1:
        message = f"'expert_tensor_parallel_size' {section.expert_tensor_parallel_size} is reserved for later"
        yield Hit((*_SECTION, "expert_tensor_parallel_size"), message, "Remove the key")
    if autotp_size(subject) > 1:
        yield from _beside_tensor_parallelism(subject, section)
    other = subject.value("tensor_parallel", "preset_model")
    if section.preset_model is not None and other is not None and other != section.preset_model:
        message = f"the presets of expert and tensor parallelism differ: '{section.preset_model}', '{other}'"
        yield Hit((*_SECTION, "preset_model"), message, "Use the same for both, or remove one")
    if subject.stage == 3:
        if subject.zero.zero_quantized_gradients:
            path = (ZERO, "zero_quantized_gradients")
            message = "expert parallelism in stage 3 does not go with 'zero_quantized_gradients'"
            yield Hit(path, message, "Remove the key")
        if subject.zero.zero_hpz_partition_size > 1:
            path = (ZERO, "zero_hpz_partition_size")
            message = "expert parallelism in stage 3 does not go with 'zero_hpz_partition_size'"
            yield Hit(path, message, "Remove the key")


def _beside_tensor_parallelism(subject: Subject, section: ExpertParallel) -> Iterator[Hit]:
    beside = "with tensor parallelism"
    size = (*_SECTION, "autoep_size")
    if section.autoep_size == 1:
        place = size if subject.is_set(*size) else _SECTION
        yield Hit(place, f"'autoep_size' has to be above 1 {beside}", "Raise it, or disable the section")
    for key in ("offload_optimizer", "offload_param"):
        if getattr(subject.zero, key) is not None:
            yield Hit((ZERO, key), f"expert parallelism does not offload {beside}", f"Remove '{key}'")
    if subject.value("compile", "deepcompile") is True:
        path: tuple[str, ...] = ("compile", "deepcompile")
        yield Hit(path, f"expert parallelism does not go with DeepCompile {beside}", "Remove the key")
    if subject.config.use_data_before_expert_parallelism:
        path = ("use_data_before_expert_parallelism",)
        yield Hit(path, f"'{path[0]}' does not go with expert parallelism {beside}", "Remove the key")
    if section.async_split_plan and section.autoep_size > 1:
        path = (*_SECTION, "async_split_plan")
        yield Hit(path, f"'async_split_plan' does not work {beside}", "Remove the key")
    if section.combine_impl == "fused_weighted_sum":
        path = (*_SECTION, "combine_impl")
        yield Hit(path, f"'combine_impl' \"fused_weighted_sum\" does not work {beside}", "Remove the key")


@rule(
    "expert-parallel-backend",
    stops=True,
    bad=_with(comm_backend="deepep"),
    good=_with(comm_backend="deepep", comm_max_tokens_per_rank=8192),
)
def expert_parallel_backend(subject: Subject) -> Iterator[Hit]:
    """Expert-parallel options that require each other

    DeepSpeed refuses these when training starts: the backend "deepep" without `comm_max_tokens_per_rank`;
    `combine_impl` "fused_weighted_sum" with that backend; `row_weighting_impl` "fused" without it, or with
    an `autoep_size` of 1; `gate_up_impl` "fused" with `use_grouped_mm` false; more groups to choose from
    (`num_limited_groups`) than there are (`num_expert_groups`).

    Source: `validate_autoep_config` in `deepspeed/module_inject/auto_ep_config.py`.
    """
    section = _enabled(subject)
    if section is None:
        return
    deepep = section.comm_backend == "deepep"
    limited, groups = section.num_limited_groups, section.num_expert_groups
    for key, wrong, message, hint in (
        (
            "comm_backend",
            deepep and section.comm_max_tokens_per_rank == 0,
            "the backend \"deepep\" needs 'comm_max_tokens_per_rank'",
            "Give it the micro batch size times the longest sequence",
        ),
        (
            "combine_impl",
            deepep and section.autoep_size > 1 and section.combine_impl == "fused_weighted_sum",
            '\'combine_impl\' "fused_weighted_sum" does not go with the backend "deepep"',
            "Remove the key",
        ),
        (
            "row_weighting_impl",
            section.row_weighting_impl == "fused" and (not deepep or section.autoep_size == 1),
            "'row_weighting_impl' \"fused\" needs the backend \"deepep\" and an 'autoep_size' above 1",
            "Remove the key",
        ),
        (
            "gate_up_impl",
            section.gate_up_impl == "fused" and not section.use_grouped_mm,
            "'gate_up_impl' \"fused\" needs 'use_grouped_mm'",
            "Remove one of the two",
        ),
        (
            "num_limited_groups",
            limited is not None and groups is not None and limited > groups,
            f"'num_limited_groups' {limited} is more than 'num_expert_groups' {groups}",
            "Lower the first or raise the second",
        ),
    ):
        if wrong:
            yield Hit((*_SECTION, key), message, hint)

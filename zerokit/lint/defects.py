"""When a config meets a known defect of DeepSpeed: what `releases/bugs.py` says in words, as conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zerokit.findings import Severity
from zerokit.lint.optimizer_facts import (
    SCHEDULER,
    TORCH_FP32,
    optimizer_name,
    schedule_argument,
    schedule_name,
    torch_adam,
    wraps_in_bf16_optimizer,
)
from zerokit.lint.subject import Subject
from zerokit.lint.values_in_force import ZERO, in_force, is_set_to, offloads_optimizer

Path = tuple[str, ...]
Condition = Callable[[Subject], Path | None]
"""Where a config meets a defect, or None if it surely or perhaps does not."""

_STAGE: Path = (ZERO, "stage")
_ACCUMULATION: Path = ("gradient_accumulation_steps",)
_OFFLOAD: Path = (ZERO, "offload_optimizer")
_GRADIENTS: Path = ("data_types", "grad_accum_dtype")
_ALL_REDUCE: Path = (ZERO, "stage3_use_all_reduce_for_fetch_params")


class Meeting(NamedTuple):
    """When a config meets a defect, and what it can do about it other than another release."""

    condition: Condition
    instead: str | None = None
    severity: Severity | None = None
    """None: error if the defect always shows and does harm, else warning."""


def _when(holds: Callable[[Subject], Any], *path: str) -> Condition:
    return lambda subject: path if holds(subject) else None


def _stages(subject: Subject, *stages: int) -> bool:
    return subject.stage in stages


def _several(subject: Subject) -> bool:
    return subject.num_gpus is None or subject.num_gpus > 1


def _is(subject: Subject, *path: str) -> bool:
    return in_force(subject, *path) is True


def _fp16(subject: Subject) -> bool:
    return _is(subject, "fp16", "enabled")


def _bf16(subject: Subject) -> bool:
    return _is(subject, "bf16", "enabled")


def _overlaps(subject: Subject) -> bool:
    return _stages(subject, 1, 2) and _is(subject, ZERO, "overlap_comm")


def _overlaps_in_one_buffer(subject: Subject) -> bool:
    return _overlaps(subject) and _is(subject, ZERO, "contiguous_gradients")


def _training(subject: Subject, name: str) -> Any:
    return None if subject.recipe is None else subject.recipe.training.get(name)


def _accumulation_steps(subject: Subject) -> int:
    steps = in_force(subject, *_ACCUMULATION)
    if steps is None and is_set_to(subject, "auto", *_ACCUMULATION):
        steps = _training(subject, "gradient_accumulation_steps")
    return steps if isinstance(steps, int) else 1


def _trains_adapters(subject: Subject) -> bool:
    return subject.recipe is not None and subject.recipe.peft is not None


def _on_nvme(subject: Subject) -> bool:
    sections = (subject.offload_optimizer, subject.offload_param)
    return _stages(subject, 3) and any(part is not None and part.device == "nvme" for part in sections)


def _second_copies(subject: Subject) -> bool:
    size = in_force(subject, ZERO, "zero_hpz_partition_size")
    return _stages(subject, 3) and isinstance(size, int) and size > 1


def _super_offload(subject: Subject) -> bool:
    return _stages(subject, 3) and _is(subject, *_OFFLOAD, "super_offload")


def _fused_adam(subject: Subject) -> bool:
    plain = optimizer_name(subject) in ("adam", "adamw") and not torch_adam(subject)
    return plain and offloads_optimizer(subject) is False


def _more_than_an_int_counts(subject: Subject) -> bool:
    if subject.model is None or not _fused_adam(subject) or not _stages(subject, 0, 1, 2):
        return False
    ranks = 1 if subject.stage == 0 else subject.num_gpus
    return ranks is not None and subject.model.num_parameters // ranks > 2**31 - 1


def _muon(subject: Subject, *stages: int) -> bool:
    return optimizer_name(subject) == "muon" and _stages(subject, *stages)


def _has_lists(subject: Subject) -> bool:
    params = subject.written_at(*SCHEDULER)
    return isinstance(params, Mapping) and any(isinstance(value, list) for value in params.values())


def _clips(subject: Subject) -> bool:
    return bool(in_force(subject, "gradient_clipping")) and subject.sets("gradient_clipping")


def _saves_modules(subject: Subject) -> bool:
    return bool(subject.recipe is not None and (subject.recipe.peft or {}).get("modules_to_save"))


_NO_OVERLAP = 'set "overlap_comm" to false'
_NOT_STAGE_0 = "use ZeRO stage 1"
_OVERLAP: Path = (ZERO, "overlap_comm")

MEETINGS: Mapping[str, Meeting] = {
    "overlap-wait": Meeting(_when(_overlaps, *_OVERLAP), _NO_OVERLAP),
    "overlap-buffer-index": Meeting(_when(_overlaps_in_one_buffer, *_OVERLAP), _NO_OVERLAP, "error"),
    "overlap-does-not-overlap": Meeting(_when(_overlaps_in_one_buffer, *_OVERLAP)),
    "overlap-buffer-lifetime": Meeting(_when(_overlaps, *_OVERLAP), _NO_OVERLAP),
    "overlap-producer-streams": Meeting(
        _when(lambda s: _overlaps_in_one_buffer(s) and _training(s, "torch_compile") is True, *_OVERLAP),
        _NO_OVERLAP,
    ),
    "zero3-gradient-stream": Meeting(_when(lambda s: _stages(s, 3), *_STAGE), "use PyTorch before 2.10"),
    "zero2-accumulation": Meeting(
        _when(
            lambda s: _stages(s, 2) and _accumulation_steps(s) > 1 and offloads_optimizer(s) is False,
            *_ACCUMULATION,
        ),
        "use stage 1",
    ),
    "zero2-offload-accumulation": Meeting(
        _when(
            lambda s: _stages(s, 2) and _accumulation_steps(s) > 2 and offloads_optimizer(s), *_ACCUMULATION
        ),
        "accumulate at most 2 steps",
    ),
    "zero2-accumulation-format": Meeting(
        _when(
            lambda s: (
                _stages(s, 2)
                and _accumulation_steps(s) > 1
                and offloads_optimizer(s) is False
                and (_bf16(s) or _fp16(s))
                and in_force(s, *_GRADIENTS) in TORCH_FP32
            ),
            *_GRADIENTS,
        ),
        "use stage 1",
    ),
    "zero1-not-divided": Meeting(_when(wraps_in_bf16_optimizer, *_GRADIENTS), "use stage 2"),
    "bf16-optimizer-accumulation": Meeting(
        _when(
            lambda s: (
                wraps_in_bf16_optimizer(s)
                and _several(s)
                and in_force(s, "bf16", "immediate_grad_update") is False
            ),
            "data_types",
            "grad_accum_dtype",
        ),
        'set "bf16.immediate_grad_update" to true',
    ),
    "stage0-fp16-no-step": Meeting(
        _when(lambda s: _stages(s, 0) and _fp16(s) and _fused_adam(s), "fp16", "enabled"), _NOT_STAGE_0
    ),
    "stage0-bf16-accumulates": Meeting(
        _when(lambda s: _stages(s, 0) and _bf16(s), "bf16", "enabled"), _NOT_STAGE_0
    ),
    "stage0-bf16-checkpoint": Meeting(
        _when(lambda s: _stages(s, 0) and _bf16(s), "bf16", "enabled"), _NOT_STAGE_0, "warning"
    ),
    "stage0-frozen-memory": Meeting(
        _when(lambda s: _stages(s, 0) and (_bf16(s) or _fp16(s)) and _trains_adapters(s), *_STAGE),
        _NOT_STAGE_0,
    ),
    "zero1-fp16-overflow": Meeting(
        _when(lambda s: _stages(s, 1) and _fp16(s) and _several(s), "fp16", "enabled"), "use stage 2"
    ),
    "zero12-infinite-norm": Meeting(
        _when(lambda s: _stages(s, 1, 2) and _fp16(s) and _clips(s), "gradient_clipping")
    ),
    "zero3-mixed-dtypes": Meeting(
        _when(lambda s: _stages(s, 3) and (_bf16(s) or _fp16(s)) and _trains_adapters(s), *_STAGE)
    ),
    "zero3-quantized-bf16": Meeting(
        _when(
            lambda s: _stages(s, 3) and _bf16(s) and _is(s, ZERO, "zero_quantized_weights"),
            ZERO,
            "zero_quantized_weights",
        ),
        "remove the key",
    ),
    "hpz-stale-copy": Meeting(_when(_second_copies, ZERO, "zero_hpz_partition_size"), "remove the key"),
    "hpz-small-parameters": Meeting(_when(_second_copies, ZERO, "zero_hpz_partition_size"), "remove the key"),
    "all-reduce-fetch-call": Meeting(
        _when(lambda s: _stages(s, 3) and _several(s) and _is(s, *_ALL_REDUCE), *_ALL_REDUCE),
        "remove the key",
    ),
    "all-reduce-fetch-padding": Meeting(
        _when(lambda s: _stages(s, 3) and _is(s, *_ALL_REDUCE), *_ALL_REDUCE), "remove the key"
    ),
    "leaf-module-race": Meeting(
        _when(lambda s: _stages(s, 3) and s.model is not None and s.model.experts is not None, *_STAGE)
    ),
    "zero3-frozen-checkpointing": Meeting(
        _when(
            lambda s: (
                _stages(s, 3) and _trains_adapters(s) and _training(s, "gradient_checkpointing") is True
            ),
            *_STAGE,
        ),
        "use reentrant checkpointing",
    ),
    "zero3-wrapper-hooks": Meeting(
        _when(lambda s: _stages(s, 3) and _trains_adapters(s) and _saves_modules(s), *_STAGE)
    ),
    "zero3-reduce-one-by-one": Meeting(_when(lambda s: _stages(s, 3), *_STAGE)),
    "slow-backward-hooks": Meeting(_when(lambda s: _stages(s, 1, 2, 3), *_STAGE)),
    "pin-memory-ignored": Meeting(
        _when(
            lambda s: _stages(s, 1, 2) and is_set_to(s, False, *_OFFLOAD, "pin_memory"),
            *_OFFLOAD,
            "pin_memory",
        )
    ),
    "super-offload-start": Meeting(_when(_super_offload, *_OFFLOAD, "super_offload"), "remove the key"),
    "super-offload-groups": Meeting(_when(_super_offload, *_OFFLOAD, "super_offload"), "remove the key"),
    "nvme-open-files": Meeting(_when(_on_nvme, *_STAGE)),
    "nvme-hang": Meeting(_when(_on_nvme, *_STAGE)),
    "nvme-save-race": Meeting(_when(_on_nvme, *_STAGE)),
    "zenflow-backward": Meeting(
        _when(lambda s: _stages(s, 1, 2) and s.zero.zenflow is not None, ZERO, "zenflow"),
        "remove the section",
    ),
    "fused-adam-large": Meeting(_when(_more_than_an_int_counts, "optimizer", "type")),
    "muon-untested": Meeting(
        _when(
            lambda s: _muon(s, 1, 2, 3) and in_force(s, "zero_allow_untested_optimizer") is False,
            "optimizer",
            "type",
        ),
        'set "zero_allow_untested_optimizer" to true',
    ),
    "muon-reduce-scatter": Meeting(
        _when(
            lambda s: _muon(s, 1, 2) and _several(s) and _is(s, ZERO, "reduce_scatter"),
            ZERO,
            "reduce_scatter",
        ),
        'set "reduce_scatter" to false',
    ),
    "muon-offload": Meeting(
        _when(lambda s: _muon(s, 1, 2) and offloads_optimizer(s), *_OFFLOAD), "use stage 3, or do not offload"
    ),
    "warmup-first-step": Meeting(
        _when(lambda s: (schedule_name(s) or "").startswith("Warmup"), "scheduler", "type"), None, "warning"
    ),
    "warmup-groups": Meeting(
        _when(
            lambda s: schedule_name(s) == "WarmupLR" and s.lacks(*SCHEDULER, "warmup_max_lr"),
            "scheduler",
            "type",
        ),
        'add "warmup_max_lr"',
        "warning",
    ),
    "cosine-no-decay": Meeting(
        _when(
            lambda s: (
                schedule_name(s) == "WarmupCosineLR"
                and isinstance(schedule_argument(s, "total_num_steps"), int)
                and schedule_argument(s, "total_num_steps") == schedule_argument(s, "warmup_num_steps")
            ),
            *SCHEDULER,
            "total_num_steps",
        ),
        'lower "warmup_num_steps"',
    ),
    "one-cycle-stairs": Meeting(
        _when(
            lambda s: (
                schedule_argument(s, "cycle_first_stair_count")
                or schedule_argument(s, "cycle_second_stair_count")
            ),
            *SCHEDULER,
        )
    ),
    "one-cycle-lists": Meeting(
        _when(lambda s: schedule_name(s) == "OneCycle" and _has_lists(s), *SCHEDULER), "write one value"
    ),
    "universal-zero3-nodes": Meeting(
        _when(
            lambda s: _stages(s, 3) and is_set_to(s, True, "checkpoint", "load_universal"),
            "checkpoint",
            "load_universal",
        )
    ),
}
"""Id of a defect -> when a config meets it."""

IN_RULES_OF_THEIR_OWN = frozenset({"stage0-fp16-unscaled"})
"""Defects of the newest release, which need no version to be named; here the rule `fp16-without-zero`."""

NOT_SEEN_IN_CONFIG = frozenset(
    {
        "cpu-lion-refused",  # a Lion that the script makes; the config's passes
        "gloo-gather",
        "gloo-stage12-step",
        "muon-parameter-groups",
        "cosine-first-step-groups",
        "cosine-rises-again",
        "pipeline-backward",
        "pipeline-repeated-scaling",
    }
)
"""Defects that depend on the script, or on a machine without GPUs."""

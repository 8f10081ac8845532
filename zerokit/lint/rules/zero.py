"""ZeRO stages and the keys that act in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerokit.config.base import ZERO, is_comment
from zerokit.config.conditions import DEVICE, NO_WRITER, NOT_READ, OLD_SWITCH
from zerokit.config.dtypes import FP32_NAMES
from zerokit.config.unused_keys import UnusedKey
from zerokit.findings import Remove, Severity
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.resolving.filled_keys import SIZE_RULES

_HAVE_RULES_OF_THEIR_OWN = frozenset(
    {
        "stage",
        "compute_grad_norm",
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "legacy_stage1",
        "offload_optimizer",
        "offload_param",
        "pipeline_loading_checkpoint",
        "zenflow",
    }
)


def _idle_keys(subject: Subject) -> dict[str, UnusedKey]:
    """Keys of the file that DeepSpeed does not read in this stage."""
    if not subject.is_set(ZERO, "stage"):
        return {}
    return {
        str(path[1]): idle
        for path, idle in subject.unused.items()
        if path[0] == ZERO and len(path) == 2 and idle.by_stage and path[1] not in _HAVE_RULES_OF_THEIR_OWN
    }


@rule("no-stage")
def no_stage(subject: Subject) -> Iterator[Hit]:
    """A section 'zero_optimization' without a stage"""
    section = subject.written_value(ZERO)
    if not isinstance(section, Mapping) or not subject.is_absent(ZERO, "stage"):
        return
    keys = [key for key in section if not is_comment(key)]
    if keys:
        message = f"no 'stage' is given, so ZeRO is off and {_listed(keys)} {_do(keys)} nothing"
        yield Hit((ZERO,), message, 'Add "stage": 1, 2 or 3')


@rule("stage3-key")
def stage_3_key(subject: Subject) -> Iterator[Hit]:
    """A key that acts in stage 3 only"""
    if subject.stage not in (1, 2):
        return
    for key, idle in _idle_keys(subject).items():
        yield Hit((ZERO, key), f"'{key}' {idle.reason}", "Use stage 3, or remove the key")


@rule("stage12-key")
def stage_12_key(subject: Subject) -> Iterator[Hit]:
    """A key that acts in stages 1 and 2 only"""
    if subject.stage != 3:
        return
    for key, idle in _idle_keys(subject).items():
        severity: Severity | None = "info" if key == "allgather_bucket_size" else None
        yield Hit((ZERO, key), f"'{key}' {idle.reason}", "Remove the key", (Remove((ZERO, key)),), severity)


@rule("stage0-keys")
def stage_0_keys(subject: Subject) -> Iterator[Hit]:
    """ZeRO options although ZeRO is off"""
    if subject.stage != 0:
        return
    keys = list(_idle_keys(subject))
    if keys:
        message = f"the stage is 0, so ZeRO is off and {_listed(keys)} {_do(keys)} nothing"
        yield Hit((ZERO,), message, "Use stage 1, 2 or 3, or remove what does nothing")


@rule("dead-key")
def dead_key(subject: Subject) -> Iterator[Hit]:
    """A key that DeepSpeed accepts and no longer reads"""
    for path, idle in subject.unused.items():
        if idle.acts.when in (NOT_READ, OLD_SWITCH) and path[-1] != "cpu_offload_use_pin_memory":
            # What the dead key says is nonetheless what happens.
            agrees = path[-1] == "allgather_partitions" and subject.zero.allgather_partitions
            message = f"'{path[-1]}' {idle.reason}"
            yield Hit(path, message, "Remove the key", (Remove(path),), "info" if agrees else None)


@rule("idle-key")
def idle_key(subject: Subject) -> Iterator[Hit]:
    """A key that has no effect with the other keys"""
    for path, idle in subject.unused.items():
        of_others = path[0] in (ZERO, "bf16", "fp16", "optimizer", "compile", "pipeline")
        if (idle.by_stage and not of_others) or (idle.acts.when in (DEVICE, NO_WRITER) and not idle.by_stage):
            yield Hit(path, f"'{path[-1]}' {idle.reason}", "Remove the key", (Remove(path),))


def _listed(keys: list[str]) -> str:
    shown = [f"'{key}'" for key in keys[:4]]
    if len(keys) > 4:
        return f"{', '.join(shown)} and {len(keys) - 4} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _do(keys: list[str]) -> str:
    return "does" if len(keys) == 1 else "do"


_LEAVES = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""The `model_type` of models whose expert blocks DeepSpeed treats as leaf modules by itself."""


@rule("moe-leaf-module")
def moe_leaf_module(subject: Subject) -> Iterator[Hit]:
    """A mixture of experts without leaf modules in stage 3"""
    model = subject.run.model
    if subject.stage != 3 or model is None or not model.is_moe or model.model_type in _LEAVES:
        return
    if subject.is_absent(ZERO, "leaf_module"):
        message = f"DeepSpeed has no leaf module for the experts of '{model.model_type}'"
        hint = "Name the class of its expert block in 'leaf_module.classes' if training gets stuck"
        yield Hit((ZERO,), message, hint)


@rule("nothing-divided")
def nothing_divided(subject: Subject) -> Iterator[Hit]:
    """A persistence threshold that keeps most of the model on every GPU"""
    model, key = subject.run.model, "stage3_param_persistence_threshold"
    threshold = subject.zero.stage3_param_persistence_threshold
    if (
        subject.stage != 3
        or model is None
        or not isinstance(threshold, int)
        or subject.is_uncertain(ZERO, key)
    ):
        return
    kept = sum(tensor.total_elements for tensor in model.tensors if tensor.elements <= threshold)
    kept = min(kept, subject.zero.stage3_model_persistence_threshold)
    if kept > model.num_parameters / 10:
        message = (
            f"parameters of up to {threshold:,} elements stay whole on every GPU: "
            f"{kept / model.num_parameters:.0%} of the model"
        )
        place = (ZERO, key) if subject.is_set(ZERO, key) else (ZERO,)
        wanted = SIZE_RULES[key].elements(model.hidden_size) if model.hidden_size else 100_000
        yield Hit(place, message, f'Set "{key}" to {wanted}')


@rule("grad-norm-off")
def grad_norm_off(subject: Subject) -> Iterator[Hit]:
    """'compute_grad_norm' off although something needs the norm"""
    stage, zero = subject.stage, subject.zero
    if zero.compute_grad_norm or stage not in (1, 2):
        return
    clipping = subject.value("gradient_clipping")
    sums_in_fp32 = subject.value("data_types", "grad_accum_dtype") in FP32_NAMES
    in_bf16 = subject.value("bf16", "enabled") is True
    if isinstance(clipping, (int, float)) and clipping > 0:
        by_default = "" if subject.is_set("gradient_clipping") else ", its default,"
        reason = f"'gradient_clipping' {clipping:g}{by_default} needs the norm"
        hint = 'Set "gradient_clipping" to 0, or remove the key'
    elif zero.zenflow is not None:
        reason, hint = "ZenFlow needs the norm", "Remove the key"
    elif subject.offloads_optimizer:
        reason, hint = "optimizer offload needs the norm", "Remove the key"
    elif stage == 1 and in_bf16 and sums_in_fp32:
        reason, hint = "stage 1 needs the norm for bf16 parameters with fp32 gradients", "Remove the key"
    else:
        return
    yield Hit((ZERO, "compute_grad_norm"), f"'compute_grad_norm' cannot be false: {reason}", hint)

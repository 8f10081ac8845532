"""Keys of a valid ds_config that change nothing, by what the models know of each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import Acts, Section
from zerokit.config.root import DeepSpeedConfig
from zerokit.documents import KeyPath

_ZERO = ("zero_optimization",)

_NEVER_READ: dict[KeyPath, str] = {
    ("disable_allgather",): "DeepSpeed no longer reads it",
    (*_ZERO, "allgather_partitions"): "DeepSpeed no longer reads it",
    (*_ZERO, "cpu_offload_use_pin_memory"): "DeepSpeed no longer reads it",
}

_NEEDS_NVME = frozenset(
    {
        "nvme_path",
        "buffer_count",
        "buffer_size",
        "max_in_cpu",
        "pipeline_read",
        "pipeline_write",
        "fast_init",
    }
)


def without_effect(config: DeepSpeedConfig) -> Iterator[tuple[KeyPath, str]]:
    """The keys that are set and change nothing, with the reason.

    Only what is sure: a stage in which DeepSpeed does not look at the key, an offload section that is off,
    NVMe's keys without NVMe, and keys that nothing reads. An "auto" stage may become any.
    """
    stage = config.zero_optimization.stage
    for path, section in _sections(config):
        for name in sorted(section.model_fields_set):
            here = (*path, name)
            if here in _NEVER_READ:
                yield here, _NEVER_READ[here]
            elif isinstance(stage, int) and stage not in _stages(section, name):
                yield here, f"it does not act in ZeRO stage {stage}"
        if path[:1] == _ZERO and len(path) == 2 and str(path[1]).startswith("offload_"):
            yield from _offload(path, section, stage)


def _sections(config: DeepSpeedConfig) -> Iterator[tuple[KeyPath, Section]]:
    yield (), config
    zero = config.zero_optimization
    yield _ZERO, zero
    for key in ("offload_optimizer", "offload_param"):
        section = getattr(zero, key)
        if section is not None and (not isinstance(zero.stage, int) or zero.stage in _stages(zero, key)):
            yield (*_ZERO, key), section


def _stages(section: Section, name: str) -> tuple[int, ...]:
    metadata = type(section).model_fields[name].metadata
    return next((item.stages for item in metadata if isinstance(item, Acts)), (0, 1, 2, 3))


def _offload(path: KeyPath, section: Section, stage: Any) -> Iterator[tuple[KeyPath, str]]:
    values: Mapping[str, Any] = section.dump()
    device = values.get("device", "none")
    if device == "auto":
        return
    for name in sorted(section.model_fields_set - {"device"}):
        if isinstance(stage, int) and stage not in _stages(section, name):
            continue  # said above
        if device == "none":
            yield (*path, name), "the device is none"
        elif name in _NEEDS_NVME and device == "cpu":
            yield (*path, name), "it acts with the device nvme only"

"""One form for all ways of writing the same ds_config: defaults filled in, one name for each key."""

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import ZERO, is_comment
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import KeyPath

RENAMED: Mapping[str, str] = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
"""Deprecated keys of `zero_optimization` -> what DeepSpeed sets in their place (`new_param` in
`deepspeed/runtime/zero/config.py`)."""


def refused_together(config: DeepSpeedConfig) -> Iterator[tuple[KeyPath, str]]:
    """Keys with one meaning that DeepSpeed refuses together, with the message."""
    if config.fp16.enabled is True and config.bf16 is not None and config.bf16.enabled is True:
        yield ("fp16", "enabled"), "bf16 and fp16 are both enabled, and DeepSpeed refuses that"
    given = config.zero_optimization.model_fields_set
    for old, new in RENAMED.items():
        if {old, new} <= given:
            message = f"'{old}' is the old form of '{new}', and DeepSpeed refuses both together"
            yield (ZERO, old), message


def normal_form(config: DeepSpeedConfig) -> dict[str, Any]:
    """Everything that DeepSpeed reads from `config`, nested, with DeepSpeed's defaults.

    Comments are gone, deprecated keys are replaced, and `overlap_comm` is decided by the stage if it is not
    given. Batch sizes that DeepSpeed computes stay absent, and so does what is null.
    """
    data: dict[str, Any] = config.dump(all=True)
    offload = config.zero_optimization.optimizer_offload, config.zero_optimization.param_offload
    for key, section in zip(("offload_optimizer", "offload_param"), offload, strict=True):
        data[ZERO][key] = None if section is None else section.dump(all=True)
    data = _without_null(without_comments(data))
    zero = data[ZERO]
    zero.pop("cpu_offload", None)
    zero.pop("cpu_offload_param", None)
    if zero.pop("stage3_gather_fp16_weights_on_model_save", False):
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    zero.pop("cpu_offload_use_pin_memory", None)
    zero.setdefault("overlap_comm", zero["stage"] == 3)
    return data


def _without_null(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _without_null(value) for key, value in data.items() if value is not None}
    return data


def without_comments(data: Any) -> Any:
    """A copy of `data` without the keys that only talk to people."""
    if isinstance(data, Mapping):
        return {key: without_comments(value) for key, value in data.items() if not is_comment(key)}
    if isinstance(data, list):
        return [without_comments(item) for item in data]
    return data

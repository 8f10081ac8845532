"""Presets of `zerokit config`: a name for each usual set of decisions, from the most memory to the least.

The files in ``ds_configs/`` are what they make, for the Trainer and, in ``plain/``, for DeepSpeed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.errors import ConfigError, did_you_mean

_NVME: Mapping[str, Any] = {
    "zero_stage": 3,
    "offload_optimizer": "nvme",
    "offload_param": "nvme",
    "nvme_path": "/local_nvme",
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "zero1": {"zero_stage": 1},
    "zero2": {"zero_stage": 2},
    "zero2_offload": {"zero_stage": 2, "offload_optimizer": "cpu"},
    "zero3": {"zero_stage": 3},
    "zeropp": {"zero_stage": 3, "zero_plus_plus": True},
    "zero3_offload_optimizer": {"zero_stage": 3, "offload_optimizer": "cpu"},
    "zero3_offload": {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    "zero3_nvme": _NVME,
    "inference": {"zero_stage": 3, "inference": True},
}
"""Name -> fields of :class:`zerokit.writing.request.Decisions`."""


def with_preset(name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The decisions of a preset, with those that were given in place of its own.

    Args:
        name: of the preset; None: there is none.
        given: fields of Decisions; None, or False for a switch, means that it was not given.

    Raises:
        ConfigError: there is no preset of that name, or neither a preset nor a stage.
    """
    chosen = {key: value for key, value in given.items() if value is not None and value is not False}
    if name is not None:
        if name not in PRESETS:
            raise ConfigError(
                f"there is no preset '{name}'", where="--preset", hint=did_you_mean(name, PRESETS)
            )
        chosen = {**PRESETS[name], **chosen}
    if "zero_stage" not in chosen:
        raise ConfigError(
            "nothing says what ZeRO divides",
            where="--zero-stage",
            hint="Give a stage, 0 to 3; or --model, --num-gpus and --gpu, for which zerokit chooses; or a "
            f"--preset: {', '.join(PRESETS)}",
        )
    return chosen

"""The ds_config of a generation run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerokit.choices import Precision
from zerokit.config import load_ds_config, read_ds_config
from zerokit.config.dtypes import TORCH_NAMES, written_precision
from zerokit.distributed.gpu_features import check_gpu_features
from zerokit.distributed.nvme import check_nvme
from zerokit.documents import Document
from zerokit.errors import ConfigError
from zerokit.generation.model import ModelFiles
from zerokit.memory.generation import GenerationMode, zero_section
from zerokit.resolving.auto_word import autos
from zerokit.resolving.filled_keys import SIZE_RULES

_KEPT = ("zero_optimization", "aio", "comms_logger", "weight_quantization", "log_level")
"""Sections that reach the engine unchanged. Others are for training, or set here."""

_OF_TRAINING = ("offload_optimizer", "zenflow", "zero_quantized_gradients")
"""Keys of ZeRO that are removed. With them DeepSpeed would look for an optimizer, or for gradients to
quantize on as many ranks as a node has devices."""

_FILLED = ("stage3_gather_16bit_weights_on_model_save", "overlap_comm", "contiguous_gradients")
"""Keys of ZeRO that are removed where they are "auto"."""

_REFUSED = ("tensor_parallel", "expert_parallel", "pipeline")
"""Sections that partition the model in ways that zerokit does not support in generation."""


@dataclass(frozen=True)
class Device:
    """The device of a rank, and the number formats that it supports."""

    is_gpu: bool
    supports_bfloat16: bool
    supports_float16: bool


@dataclass(frozen=True)
class Engine:
    """Settings of DeepSpeed and transformers."""

    ds_config: dict[str, Any]
    """Without a single "auto"."""
    precision: Precision
    mode: GenerationMode = "sharded"
    batch_size: int | None = None
    """Sequences that a rank decodes at once; None: not chosen yet."""

    @property
    def dtype(self) -> str:
        """``bfloat16``, ``float16`` or ``float32``."""
        return TORCH_NAMES[self.precision]

    @property
    def zero_stage(self) -> int:
        """0 or 3."""
        return int(self.ds_config["zero_optimization"]["stage"])

    @property
    def is_synced(self) -> bool:
        """Whether all ranks make each forward pass together."""
        return self.mode in ("sharded", "offloaded", "tensor")

    def in_mode(
        self, mode: GenerationMode, *, section: Mapping[str, Any] | None = None, batch_size: int | None = None
    ) -> Engine:
        """Return the engine in a mode; keys of a ds_config of stage 3 stay where the mode has that stage.

        Args:
            section: `zero_optimization` of the mode for this model; None: for any model.

        Raises:
            ConfigError: NVMe cannot be used.
        """
        made, zero = {**(section or zero_section(mode, 1))}, self.ds_config["zero_optimization"]
        if made["stage"] == 3 and zero["stage"] == 3:
            offload = {"offload_param": made["offload_param"]} if section and "offload_param" in section else {}
            made = made | zero | offload
        check_nvme(made, lambda _: "--mode")
        return replace(self, ds_config=self.ds_config | {"zero_optimization": made}, mode=mode, batch_size=batch_size)


def plan_engine(path: Path | None, *, requested_dtype: str, model: ModelFiles, device: Device) -> Engine:
    """Choose the number format, and make the ds_config to run with.

    Args:
        path: the user's ds_config; None for stage 3.

    Raises:
        DocumentError: the file cannot be read.
        ConfigError: a key or value is not valid, has no use in generation, or contradicts `requested_dtype`.
    """
    given = Document({"zero_optimization": {"stage": 3}}, "ds_config") if path is None else read_ds_config(path)
    data = load_ds_config(given.data if path is None else path).dump()
    _check_sections(data, given)
    precision = _choose_precision(data, given, requested_dtype, model, device)
    config = {key: data[key] for key in _KEPT if key in data}
    config["zero_optimization"] = _zero_section(data.get("zero_optimization", {}), given, model)
    for path_of_auto in autos(config):
        raise ConfigError(
            '"auto" has no value in generation', where=given.where(path_of_auto), hint="Write a value, or remove it"
        )
    config["train_micro_batch_size_per_gpu"] = 1  # DeepSpeed demands one; nothing is trained with it
    for section in ("bf16", "fp16"):
        config[section] = {"enabled": section == precision}
    return Engine(config, precision)


def _check_sections(data: Mapping[str, Any], given: Document) -> None:
    for section in _REFUSED:
        if section in data:
            raise ConfigError("is not supported in generation", where=given.where((section,)), hint="Remove it")
    stage = data.get("zero_optimization", {}).get("stage", 0)
    if stage not in (0, 3):
        raise ConfigError(
            f"stage {stage} divides what only training has" if stage != "auto" else '"auto" is no stage',
            where=given.where(("zero_optimization", "stage")),
            hint="Set 3 to divide the parameters, or 0 for a full copy on every rank",
        )


def _zero_section(zero: Mapping[str, Any], given: Document, model: ModelFiles) -> dict[str, Any]:
    """`zero` for inference, with transformers' sizes for absent and "auto" values."""
    stage = zero.get("stage", 0)
    if stage == 0:
        return {"stage": 0}
    kept = {key: value for key, value in zero.items() if key not in _OF_TRAINING}
    filled = {key for key in (*SIZE_RULES, *_FILLED) if kept.get(key) == "auto"}
    section = zero_section("sharded", _hidden_size(model)) | {key: kept[key] for key in kept.keys() - filled}
    check_gpu_features(section, given.where)
    check_nvme(section, given.where)
    return section


def _hidden_size(model: ModelFiles) -> int:
    text = model.config.get_text_config(decoder=True)
    sizes = getattr(text, "hidden_size", None) or getattr(text, "hidden_sizes", None) or 1024
    return int(max(sizes)) if isinstance(sizes, list | tuple) else int(sizes)


def _choose_precision(
    data: Mapping[str, Any], given: Document, requested: str, model: ModelFiles, device: Device
) -> Precision:
    if all((data.get(section) or {}).get("enabled") is True for section in ("bf16", "fp16")):
        raise ConfigError("bf16 and fp16 are both enabled", where=given.where(("fp16",)), hint="Keep one of them")
    settled = written_precision(data)
    if requested != "auto":
        wanted = next(name for name, dtype in TORCH_NAMES.items() if dtype == requested)
        if settled not in (None, wanted):
            raise ConfigError(
                f"{requested}, but {given.name} says {TORCH_NAMES[settled]}",
                where="--dtype",
                hint='Make them agree, or write "auto" for "enabled" there',
            )
        settled = wanted
    if settled is None:
        return _default_precision(model, device)
    supported = {"bf16": device.supports_bfloat16, "fp16": device.supports_float16, "fp32": True}
    if not supported[settled]:
        raise ConfigError(
            f"this device has no {TORCH_NAMES[settled]}",
            where="--dtype" if requested != "auto" else given.name,
            hint="Use float32",
        )
    return settled


def _default_precision(model: ModelFiles, device: Device) -> Precision:
    if not device.is_gpu:
        return "fp32"
    stored = str(getattr(model.config, "dtype", None)).removeprefix("torch.")
    return "fp16" if stored == "float16" or not device.supports_bfloat16 else "bf16"

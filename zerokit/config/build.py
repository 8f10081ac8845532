"""A ds_config from a few decisions."""

from __future__ import annotations

from typing import Any, Literal

from zerokit.config.auto import TARGETS, Target
from zerokit.config.base import AUTO
from zerokit.config.check import cross_check
from zerokit.config.load import load_ds_config
from zerokit.config.root import DeepSpeedConfig
from zerokit.errors import ConfigError, did_you_mean

NVME_PARAM_BUFFERS = 12
"""Buffers for parameters on their way from NVMe: each holds 1e8 of them, pinned on the host of every rank."""

OffloadDevice = Literal["cpu", "nvme"]
Precision = Literal["bf16", "fp16", "fp32"]

ADAMW = {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}}
"""The optimizer written for target `deepspeed`. A fine-tuning learning rate; PyTorch's AdamW defaults
otherwise."""


def build_ds_config(
    *,
    zero_stage: int,
    offload_optimizer: OffloadDevice | None = None,
    offload_param: OffloadDevice | None = None,
    nvme_path: str | None = None,
    precision: Precision | None = "bf16",
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    target: Target = "trainer",
) -> DeepSpeedConfig:
    """A valid ds_config that holds only what differs from DeepSpeed's defaults or must not be absent.

    - For `trainer`, whatever the Trainer has an argument for is "auto", for it ignores its argument in
      silence when the key is absent. Buckets are sized by the model's hidden size.
    - For `accelerate`, the same without the buckets: it knows the hidden size of fewer models, and fails
      where it does not.
    - For both there is no `optimizer` and no `scheduler`: they would override the script's in silence.
    - For `deepspeed` nothing is "auto": batch sizes default to 1, clipping to 1.0, and an AdamW is
      written out, which DeepSpeed needs under offload and ignores if the script passes its own.
    - `train_batch_size` is left out: it is computed, and the config holds for any number of GPUs.

    Args:
        zero_stage: 0, 1, 2 or 3.
        offload_optimizer: where optimizer states go; "nvme" in stage 3 only.
        offload_param: where parameters go; in stage 3 only.
        nvme_path: folder on the NVMe device.
        precision: None leaves the choice to the Trainer's or accelerate's arguments.
        micro_batch_size: samples per forward pass on one GPU.
        gradient_accumulation_steps: forward passes per optimizer step.
        target: who hands the config to DeepSpeed.

    Raises:
        ConfigError: the decisions do not go together.
    """
    if target not in TARGETS:
        raise ConfigError(f"there is no target '{target}'", hint=did_you_mean(target, TARGETS))
    if nvme_path is None and "nvme" in (offload_optimizer, offload_param):
        raise ConfigError("offload to NVMe needs a folder", hint="Give one as nvme_path (--nvme-path)")
    if nvme_path is not None and "nvme" not in (offload_optimizer, offload_param):
        raise ConfigError(
            "an NVMe path is given, but nothing is offloaded to NVMe",
            hint='Offload the optimizer or the parameters to "nvme", or leave the path out',
        )
    unset = AUTO if target != "deepspeed" else 1
    data: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": unset if micro_batch_size is None else micro_batch_size,
        "gradient_accumulation_steps": unset
        if gradient_accumulation_steps is None
        else gradient_accumulation_steps,
        "gradient_clipping": AUTO if target != "deepspeed" else 1.0,
        **_precision(precision, target),
        "zero_optimization": _zero(zero_stage, offload_optimizer, offload_param, nvme_path, target),
    }
    if target == "deepspeed":
        data["optimizer"] = ADAMW
    config = load_ds_config(data)
    for problem in cross_check(config, target=target):
        if problem.severity == "error":
            raise ConfigError(problem.message, hint=problem.hint)
    return config


def _precision(precision: Precision | None, target: Target) -> dict[str, Any]:
    if precision is None:
        if target == "deepspeed":
            raise ConfigError(
                "DeepSpeed alone cannot choose the precision", hint="Choose the precision bf16, fp16 or fp32"
            )
        return {"bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO}}
    if precision == "fp32":
        # Both sections are written, or accelerate would add one when asked for mixed precision.
        return {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
    if precision not in ("bf16", "fp16"):
        hint = did_you_mean(precision, ("bf16", "fp16", "fp32"))
        raise ConfigError(f"there is no precision '{precision}'", hint=hint)
    return {precision: {"enabled": True}}


def _zero(
    stage: int,
    offload_optimizer: OffloadDevice | None,
    offload_param: OffloadDevice | None,
    nvme_path: str | None,
    target: Target,
) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    for key, device in (("offload_optimizer", offload_optimizer), ("offload_param", offload_param)):
        if device is not None:
            zero[key] = {"device": device}
            if device == "nvme" and nvme_path is not None:
                zero[key]["nvme_path"] = nvme_path
                if key == "offload_param":
                    # DeepSpeed's 5 do not last for one decoder layer with recomputed activations: "Not enough
                    # buffers 0 for swapping 1" (DeepSpeed issue 3062), found again by rehearsing this preset.
                    zero[key]["buffer_count"] = NVME_PARAM_BUFFERS
    if stage == 3:
        # Without it the saved model holds no weights.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if target == "trainer" and stage != 0:
        zero["reduce_bucket_size"] = AUTO
        if stage == 3:
            zero["stage3_prefetch_bucket_size"] = AUTO
            zero["stage3_param_persistence_threshold"] = AUTO
    return zero

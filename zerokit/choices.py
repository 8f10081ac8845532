"""The values of options that are closed lists. Importing this module costs nothing."""

from __future__ import annotations

from typing import Literal

Target = Literal["trainer", "accelerate", "deepspeed"]
"""The program that passes the config to DeepSpeed: the Trainer, accelerate, or the script itself."""

OffloadDevice = Literal["cpu", "nvme"]
Precision = Literal["bf16", "fp16", "fp32"]

ZeroStage = int | Literal["none"]
"""0 to 3; none: torch's DistributedDataParallel, or one GPU, without DeepSpeed."""
OptimizerName = Literal["Adam", "AdamW", "Lion", "Lamb", "Adagrad", "SGD", "Muon"]
"""Optimizers that DeepSpeed builds from a ds_config of `zerokit config`."""
SchedulerName = Literal["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"]
ActivationCheckpointing = Literal["partition", "cpu"]

Attention = Literal["sdpa", "flash_attention_2", "eager"]
ChunkedLoss = Literal["zerokit", "liger"]
"""Losses that never hold all logits at once: that of `zerokit train`, or Liger's fused loss."""
OptimizerKind = Literal[
    "adamw",  # torch's, foreach
    "adamw_fused",  # torch's, fused=True
    "fused_adam",  # DeepSpeed's FusedAdam, what "AdamW" in a ds_config is without offload
    "cpu_adam",  # DeepSpeed's DeepSpeedCPUAdam, what "AdamW" in a ds_config is with offload
    "adamw_8bit",  # bitsandbytes', like the next four
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "lion_8bit",
    "paged_lion_8bit",
    "lion",
    "sgd",
    "sgd_momentum",
    "adagrad",
    "adafactor",
    "lamb",
    "muon",
]
"""Optimizers of scripts, as far as their memory differs."""

Launcher = Literal["torchrun", "deepspeed", "accelerate"]
"""Programs that start ranks, by the name of their command."""

LAUNCHER_MODULES: dict[str, Launcher] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "accelerate.commands.accelerate_cli": "accelerate",
    "accelerate.commands.launch": "accelerate",
}
"""Modules that start a launcher with ``python -m``."""

LaunchTarget = Literal["deepspeed", "torchrun", "accelerate", "slurm", "kubernetes", "skypilot"]
"""Launchers and schedulers that start a run on several machines."""

DEFAULT_PORT = 29500
"""Default port of the rendezvous in torch and DeepSpeed."""

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python from importing modules of the current folder, which may be untrusted. zerokit sets it for all
processes that it starts."""

OUTPUT_DIR = "runs/train"
"""Default output folder of a recipe."""

OutputFormat = Literal["text", "json"]
"""Format of a command's output."""

LearnedTokensMethod = Literal["p_tuning", "prefix_tuning", "prompt_tuning"]
"""Methods of peft that learn tokens before each sequence."""

PeftMethod = Literal["ia3", LearnedTokensMethod]
"""Methods of peft without a rank."""

"""The words that options take, each list once; importing it costs nothing, for the command line."""

from __future__ import annotations

from typing import Literal

Target = Literal["trainer", "accelerate", "deepspeed"]
"""Who hands the config to DeepSpeed: transformers' Trainer, accelerate, or the script itself."""

OffloadDevice = Literal["cpu", "nvme"]
Precision = Literal["bf16", "fp16", "fp32"]
OptimizerName = Literal["Adam", "AdamW", "Lion", "Lamb", "Adagrad", "SGD", "Muon"]
"""What DeepSpeed builds from a ds_config that `zerokit config` writes."""
SchedulerName = Literal["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"]
ActivationCheckpointing = Literal["partition", "cpu"]

Attention = Literal["sdpa", "flash_attention_2", "eager"]
ChunkedLoss = Literal["zerokit", "liger"]
"""Whose loss makes logits in chunks, never all at once: that of `zerokit train`, or Liger's fused one."""
OptimizerKind = Literal[
    "adamw",  # torch's, foreach
    "adamw_fused",  # torch's, fused=True
    "fused_adam",  # DeepSpeed's FusedAdam, what "AdamW" in a ds_config is without offload
    "cpu_adam",  # DeepSpeed's DeepSpeedCPUAdam, what "AdamW" in a ds_config is with offload
    "adamw_8bit",  # bitsandbytes', as the four below
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
"""What a script makes, as far as its memory depends on it."""

Launcher = Literal["torchrun", "deepspeed", "accelerate"]
"""Who starts the ranks; the name of its program, too."""

LAUNCHER_MODULES: dict[str, Launcher] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "accelerate.commands.accelerate_cli": "accelerate",
    "accelerate.commands.launch": "accelerate",
}
"""The launcher that ``python -m`` starts by each."""

LaunchTarget = Literal["deepspeed", "torchrun", "accelerate", "slurm", "kubernetes", "skypilot"]
"""Who starts a run on several machines."""

DEFAULT_PORT = 29500
"""At which ranks meet: torch's and DeepSpeed's own."""

SAFE_PATH = "PYTHONSAFEPATH"
"""The variable by which Python imports no module of the current folder, which may be anybody's: with 1 it is
set for all that zerokit starts."""

OUTPUT_DIR = "runs/train"
"""Of a recipe that names none."""

OutputFormat = Literal["text", "json"]
"""Of what a command prints."""

LearnedTokensMethod = Literal["p_tuning", "prefix_tuning", "prompt_tuning"]
"""Methods of peft that learn tokens before each sequence."""

PeftMethod = Literal["ia3", LearnedTokensMethod]
"""Methods of peft without a rank."""

"""The options of ``zerokit config``, by the heading under which its help lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from zerokit.cli.gpu_options import gpu_memory_option, gpu_option

_ZERO = "What ZeRO does"
_TRAINING = "Training"
_RUN = "The run it is for"
_OUTPUT = "Output"

Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Start from a usual set of these options: zero1, zero2, zero2_offload, zero3, "
        "zero3_offload_optimizer, zero3_offload, zero3_nvme, zeropp, inference.",
        show_default=False,
        rich_help_panel=_ZERO,
    ),
]

ZeroStage = Annotated[
    int | None,
    typer.Option(
        min=0, max=3, help="What ZeRO divides among the GPUs.", show_default=False, rich_help_panel=_ZERO
    ),
]

OffloadOptimizer = Annotated[
    Literal["cpu", "nvme"] | None,
    typer.Option(help="Keep optimizer states there. Stages 1 to 3; nvme: 3.", rich_help_panel=_ZERO),
]

OffloadParam = Annotated[
    Literal["cpu", "nvme"] | None,
    typer.Option(help="Keep parameters there. Stage 3.", rich_help_panel=_ZERO),
]

NvmePath = Annotated[str | None, typer.Option(help="Folder on the NVMe device.", rich_help_panel=_ZERO)]

ZeroPlusPlus = Annotated[
    bool,
    typer.Option(
        "--zero-plus-plus",
        help="Gather parameters in 8 bits and inside nodes, reduce gradients in 4 bits. Stage 3.",
        rich_help_panel=_ZERO,
    ),
]

HpzSize = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Ranks that share a second copy of the parameters (ZeRO++'s hpZ). Stage 3.",
        show_default="GPUs per node with --zero-plus-plus, else off",
        rich_help_panel=_ZERO,
    ),
]

Inference = Annotated[
    bool,
    typer.Option(
        "--inference", help="For generation: nothing that only training reads.", rich_help_panel=_ZERO
    ),
]

Precision = Annotated[
    Literal["auto", "bf16", "fp16", "fp32"] | None,
    typer.Option(
        help="Number format. auto: what the Trainer or accelerate is told.",
        show_default="auto; bf16 for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

Optimizer = Annotated[
    Literal["Adam", "AdamW", "Lion", "Lamb", "Adagrad", "SGD", "Muon"] | None,
    typer.Option(
        case_sensitive=False,
        metavar="NAME",
        help="Let DeepSpeed build it: Adam, AdamW, Lion, Lamb, Adagrad, SGD or Muon.",
        show_default="the script's; AdamW for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

Scheduler = Annotated[
    Literal["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"] | None,
    typer.Option(
        case_sensitive=False,
        metavar="NAME",
        help="Let DeepSpeed build it: WarmupLR (constant), WarmupDecayLR (linear), WarmupCosineLR, OneCycle.",
        show_default="the script's",
        rich_help_panel=_TRAINING,
    ),
]

LearningRate = Annotated[
    float | None,
    typer.Option(
        help="Of the optimizer.",
        show_default="auto; a start for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

WarmupSteps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of the scheduler.",
        show_default="auto; 3% of all for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

TotalSteps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Optimizer steps of the run, where the scheduler ends.",
        show_default="auto",
        rich_help_panel=_TRAINING,
    ),
]

MicroBatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Samples per forward pass on one GPU.",
        show_default="auto; 1 for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

GradientAccumulationSteps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Forward passes per optimizer step.",
        show_default="auto; 1 for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

GradientClipping = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Largest norm of all gradients; 0: off.",
        show_default="auto; 1.0 for --target deepspeed",
        rich_help_panel=_TRAINING,
    ),
]

ActivationCheckpointing = Annotated[
    Literal["partition", "cpu"] | None,
    typer.Option(
        help="How deepspeed.checkpointing keeps activations: divided by tensor-parallel ranks, or on the "
        "host. Models of transformers do not call it.",
        rich_help_panel=_TRAINING,
    ),
]

Target = Annotated[
    Literal["trainer", "accelerate", "deepspeed"],
    typer.Option(help="Who hands the config to DeepSpeed.", rich_help_panel=_RUN),
]

Model = Annotated[
    str | None,
    typer.Option(
        help="Size buckets and buffers for it: a name, a Hub id, a folder, a config.json.",
        rich_help_panel=_RUN,
    ),
]

NumGpus = Annotated[int | None, typer.Option(min=1, help="GPUs in all.", rich_help_panel=_RUN)]

GpusPerNode = Annotated[int, typer.Option(min=1, help="GPUs of a node.", rich_help_panel=_RUN)]

Gpu = Annotated[str | None, gpu_option(_RUN)]

GpuMemory = Annotated[str | None, gpu_memory_option(_RUN)]

Explain = Annotated[bool, typer.Option("--explain", help="Say why for each key.", rich_help_panel=_OUTPUT)]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write there, not to stdout.", rich_help_panel=_OUTPUT
    ),
]

AccelerateYaml = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the config of 'accelerate launch' that goes with it, too.",
        rich_help_panel=_OUTPUT,
    ),
]

Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.", rich_help_panel=_OUTPUT)]

OutputFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--format", help="Of --explain: a table, or JSON around the config.", rich_help_panel=_OUTPUT
    ),
]

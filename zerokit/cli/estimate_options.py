"""The options of ``zerokit estimate``, by the heading under which its help lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from zerokit.cli.gpu_options import gpu_memory_option, gpu_option

_RUN = "The run"
_ZERO = "ZeRO"
_MODEL = "What is trained"
_ANSWER = "The answer"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name, a Hub id, a folder, a config.json, or a bare number of parameters such as 7.5B.",
        show_default=False,
    ),
]

NumGpus = Annotated[
    str, typer.Option(metavar="N[,N...]", help="GPUs in all.", show_default=False, rich_help_panel=_RUN)
]

GpusPerNode = Annotated[int, typer.Option(min=1, help="GPUs of one node.", rich_help_panel=_RUN)]

MicroBatchSize = Annotated[
    str | None,
    typer.Option(
        metavar="B[,B...]",
        help="Sequences per forward pass on one GPU.",
        show_default="the ds_config's, else 1",
        rich_help_panel=_RUN,
    ),
]

SeqLen = Annotated[
    str | None, typer.Option(metavar="S[,S...]", help="Tokens of each sequence.", rich_help_panel=_RUN)
]

GradientAccumulationSteps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Forward passes per optimizer step.",
        show_default="the ds_config's, else 1",
        rich_help_panel=_RUN,
    ),
]

DsConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read how ZeRO works from a ds_config.", rich_help_panel=_ZERO),
]

Target = Annotated[
    Literal["trainer", "accelerate", "deepspeed"],
    typer.Option(help='Who hands the config to DeepSpeed, and so fills "auto".', rich_help_panel=_ZERO),
]

ZeroStage = Annotated[
    str | None,
    typer.Option(
        metavar="S[,S...]", help="In place of a file: what ZeRO divides, 0 to 3.", rich_help_panel=_ZERO
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

Precision = Annotated[
    Literal["bf16", "fp16", "fp32"] | None,
    typer.Option(help="Number format.", show_default="the ds_config's, else bf16", rich_help_panel=_ZERO),
]

GradientCheckpointing = Annotated[
    bool,
    typer.Option(
        "--gradient-checkpointing", help="Compute activations again in backward.", rich_help_panel=_MODEL
    ),
]

Attention = Annotated[
    Literal["sdpa", "flash_attention_2", "eager"],
    typer.Option(help="As transformers' attn_implementation.", rich_help_panel=_MODEL),
]

Optimizer = Annotated[
    Literal[
        "adamw", "adamw_fused", "fused_adam", "cpu_adam", "adamw_8bit", "lion", "sgd", "sgd_momentum",
        "adagrad", "adafactor", "lamb", "muon",
    ]
    | None,
    typer.Option(
        help="What the script makes: torch's AdamW or its fused one, DeepSpeed's FusedAdam or "
        "DeepSpeedCPUAdam, bitsandbytes', ...",
        show_default="the ds_config's, else the target's",
        rich_help_panel=_MODEL,
    ),
]  # fmt: skip

LoraRank = Annotated[
    int | None, typer.Option(min=1, help="Train LoRA adapters of this rank only.", rich_help_panel=_MODEL)
]

LoraTargets = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        help="Modules that get an adapter; all-linear: every one.",
        show_default="q_proj,v_proj",
        rich_help_panel=_MODEL,
    ),
]

TrainableParameters = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT",
        help="Of a bare number of parameters, so many are trained.",
        show_default="all",
        rich_help_panel=_MODEL,
    ),
]

Freeze = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PREFIX",
        help="Do not train parameters of this name. May be repeated.",
        rich_help_panel=_MODEL,
    ),
]

ChunkedLoss = Annotated[
    bool,
    typer.Option(
        "--chunked-loss",
        help="The loss never makes all logits at once: Liger, cut cross entropy.",
        rich_help_panel=_MODEL,
    ),
]

Packing = Annotated[
    bool, typer.Option("--packing", help="Sequences are packed, without a mask.", rich_help_panel=_MODEL)
]

Gpu = Annotated[str | None, gpu_option(_ANSWER)]

GpuMemory = Annotated[str | None, gpu_memory_option(_ANSWER)]

FitInto = Annotated[
    str | None,
    typer.Option(
        "--fit",
        metavar="SIZE",
        help="Find the largest micro batch, the longest sequences and the fewest GPUs that fit.",
        rich_help_panel=_ANSWER,
    ),
]

Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Every formula with its numbers and where it is from.", rich_help_panel=_ANSWER
    ),
]

Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw it: .png, .svg or .html.", rich_help_panel=_ANSWER),
]

OutputFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="Form of the answer.", rich_help_panel=_ANSWER),
]

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the JSON, too.", rich_help_panel=_ANSWER),
]

"""The options of ``zerokit estimate``, by the heading under which its help lists them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from zerokit import choices
from zerokit.cli import completion
from zerokit.cli.command import needed_unless
from zerokit.cli.gpu_options import AS_RENTED, gpu_memory_option, gpu_option, host_memory_option
from zerokit.errors import ConfigError
from zerokit.units import in_digits

_ANSWER = "The answer"
_run = partial(typer.Option, rich_help_panel="The run")
_zero = partial(typer.Option, rich_help_panel="ZeRO")
_model = partial(typer.Option, rich_help_panel="What is trained")
_answer = partial(typer.Option, rich_help_panel=_ANSWER)


def _is_a_number(given: Mapping[str, Any]) -> bool:
    from zerokit.estimation.ask import bare_count

    return bare_count(given.get("model") or "") is not None


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=completion.model,
        help="A name, a Hub id, a folder, a config.json, or a bare number of parameters such as 7.5B.",
        show_default=False,
    ),
]

NumGpus = Annotated[str, _run(metavar="N[,N...]", help="GPUs in all.", show_default=False)]

GpusPerNode = Annotated[int, _run(min=1, help="GPUs of one node.")]

MicroBatchSize = Annotated[
    str | None,
    _run(
        metavar="B[,B...]",
        help="Sequences per forward pass on one GPU.",
        show_default="the ds_config's, else 1",
    ),
]

EvalBatchSize = Annotated[
    int | None,
    _run(
        min=1, metavar="B", help="Sequences per forward pass of an evaluation.", show_default="no evaluation"
    ),
]

SeqLen = Annotated[
    str | None,
    _run(
        metavar="S[,S...]",
        help="Tokens of each sequence; a bare number of parameters needs none.",
        callback=needed_unless(
            _is_a_number,
            "option '--seq-len'",
            "Activations depend on it; a bare number of parameters such as 7.5B needs none",
        ),
    ),
]

GradientAccumulationSteps = Annotated[
    int | None, _run(min=1, help="Forward passes per optimizer step.", show_default="the ds_config's, else 1")
]

DsConfig = Annotated[Path | None, _zero(metavar="FILE", help="Read how ZeRO works from a ds_config.")]

Target = Annotated[
    choices.Target,
    _zero(help='Who hands the config to DeepSpeed, and so fills "auto".'),
]

ZeroStage = Annotated[
    str | None,
    _zero(
        metavar="S[,S...]",
        help="In place of a file: what ZeRO divides, 0 to 3.",
        callback=needed_unless(
            lambda given: given.get("ds_config"),
            "option '--zero-stage'",
            "Give it, or a file with --ds-config",
        ),
    ),
]

OffloadOptimizer = Annotated[
    choices.OffloadDevice | None, _zero(help="Keep optimizer states there. Stages 1 to 3; nvme: 3.")
]  # fmt: skip

OffloadParam = Annotated[choices.OffloadDevice | None, _zero(help="Keep parameters there. Stage 3.")]

Precision = Annotated[
    choices.Precision | None,
    _zero(help="Number format.", show_default="the ds_config's, else bf16"),
]

GradientCheckpointing = Annotated[
    bool, _model("--gradient-checkpointing", help="Compute activations again in backward.")
]

Attention = Annotated[
    choices.Attention | None,
    _model(help="As transformers' attn_implementation.", show_default="what transformers chooses"),
]

Optimizer = Annotated[
    choices.OptimizerKind | None,
    _model(
        metavar="NAME",
        help=f"What the script makes: {', '.join(get_args(choices.OptimizerKind))}.",
        show_default="the ds_config's, else the target's",
    ),
]

LoraRank = Annotated[int | None, _model(min=1, help="Train LoRA adapters of this rank only.")]

Dora = Annotated[bool, _model("--dora", help="With --lora-rank: DoRA.")]

LoraDropout = Annotated[bool, _model("--lora-dropout", help="With --lora-rank: inputs go through dropout.")]

LoraTargets = Annotated[
    str | None,
    _model(
        metavar="NAME[,NAME...]",
        help="Modules that get an adapter; all-linear: every one.",
        show_default="peft's of the model's type, else every one",
    ),
]

Peft = Annotated[
    choices.PeftMethod | None,
    _model("--peft", help="Train IA3's factors, or tokens before each sequence, only."),
]

VirtualTokens = Annotated[
    int | None, _model(min=1, help="With --peft: how many tokens are learned.", show_default="20")
]

LoadIn4Bit = Annotated[
    bool, _model("--load-in-4bit", help="bitsandbytes keeps linear layers in 4 bits (nf4); with --lora-rank.")
]

DoubleQuant = Annotated[
    bool, _model("--double-quant", help="With --load-in-4bit: bnb_4bit_use_double_quant.")
]

TrainableParameters = Annotated[
    str | None,
    _model(metavar="COUNT", help="Of a bare number of parameters, so many are trained.", show_default="all"),
]

Freeze = Annotated[
    list[str] | None, _model(metavar="PREFIX", help="Do not train parameters of this name. May be repeated.")
]

ChunkedLoss = Annotated[
    bool, _model("--chunked-loss", help="The loss never makes all logits at once, as in 'zerokit train'.")
]

Liger = Annotated[bool, _model("--liger", help="The loss is Liger's fused one.")]

Packing = Annotated[
    bool,
    _model(
        "--packing", help="Sequences have several documents, kept apart by a mask but for flash attention."
    ),
]

Gpu = Annotated[str | None, gpu_option(_ANSWER)]

GpuMemory = Annotated[str | None, gpu_memory_option(_ANSWER)]

HostMemory = Annotated[str | None, host_memory_option(_ANSWER, AS_RENTED)]

FitInto = Annotated[
    str | None,
    _answer(
        "--fit",
        metavar="SIZE",
        help="Find the largest micro batch, the longest sequences and the fewest GPUs that fit.",
    ),
]

Explain = Annotated[bool, _answer("--explain", help="Every formula with its numbers and where it is from.")]

Plot = Annotated[Path | None, _answer(metavar="FILE", help="Draw it: .png, .svg or .html.")]

OutputFormat = Annotated[choices.OutputFormat, _answer("--format", help="Form of the answer.")]

Output = Annotated[
    Path | None, _answer("--output", "-o", metavar="FILE", help="Write the JSON, too; - prints it alone.")
]

Force = Annotated[bool, _answer("--force", help="Overwrite existing files.")]


def sizes(text: str | None, option: str, least: int = 1, most: int | None = None) -> tuple[int, ...]:
    """``"1,2,4"`` as numbers, each once.

    Raises:
        ConfigError: not whole numbers, or one below `least` or above `most`.
    """
    found = []
    for word in () if text is None else text.split(","):
        try:
            size = int(word)
        except ValueError:
            meant = in_digits(word, of_tokens=option == SIZES["seq_len"][0])
            hint = "Write it like 4, or 1,2,4" if meant is None else f"Write {meant}"
            raise ConfigError(f"'{word}' is not a whole number", where=option, hint=hint) from None
        if size < least:
            raise ConfigError(f"is {size}", where=option, hint=f"Give {least} or more")
        if most is not None and size > most:
            raise ConfigError(f"is {size}", where=option, hint=f"Give {least} to {most}")
        found.append(size)
    return tuple(dict.fromkeys(found))


SIZES: Mapping[str, tuple[str, int, int | None]] = {
    "zero_stage": ("--zero-stage", 0, 3),
    "num_gpus": ("--num-gpus", 1, None),
    "micro_batch_size": ("--micro-batch-size", 1, None),
    "seq_len": ("--seq-len", 1, None),
}
"""Of each parameter that may be a list: its option, the least and the most."""

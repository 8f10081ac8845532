"""The options of ``zerokit estimate``, by the heading of the help that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from zerokit import choices
from zerokit.cli import completion
from zerokit.cli.command import required_unless
from zerokit.cli.gpu_options import AS_RENTED, gpu_memory_option, gpu_option, host_memory_option
from zerokit.errors import ConfigError
from zerokit.hardware import GPUS_PER_NODE
from zerokit.units import interpret_number

_ANSWER = "The answer"
_run = partial(typer.Option, rich_help_panel="The run")
_zero = partial(typer.Option, rich_help_panel="ZeRO")
_model = partial(typer.Option, rich_help_panel="What is trained")
_answer = partial(typer.Option, rich_help_panel=_ANSWER)


def _is_a_number(given: Mapping[str, Any]) -> bool:
    from zerokit.estimation.api import bare_count

    return bare_count(given.get("model") or "") is not None


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """All options of ``zerokit estimate``."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=completion.model,
            help="A name, a Hub id, a folder, a config.json, or a bare number of parameters such as 7.5B.",
            show_default=False,
        ),
    ]
    num_gpus: Annotated[str, _run(metavar="N[,N...]", help="Number of GPUs.", show_default=False)]
    gpus_per_node: Annotated[int, _run(min=1, help="GPUs per node.")] = GPUS_PER_NODE
    micro_batch_size: Annotated[
        str | None,
        _run(
            metavar="B[,B...]",
            help="Sequences per forward pass on one GPU.",
            show_default="the ds_config's, else 1",
        ),
    ] = None
    eval_batch_size: Annotated[
        int | None,
        _run(
            min=1,
            metavar="B",
            help="Sequences per forward pass of an evaluation.",
            show_default="no evaluation",
        ),
    ] = None
    seq_len: Annotated[
        str | None,
        _run(
            metavar="S[,S...]",
            help="Tokens of each sequence; a bare number of parameters needs none.",
            callback=required_unless(
                _is_a_number,
                "option '--seq-len'",
                "Activations depend on it. A bare number of parameters such as 7.5B needs none",
            ),
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        _run(min=1, help="Forward passes per optimizer step.", show_default="the ds_config's, else 1"),
    ] = None
    ds_config: Annotated[
        Path | None, _zero(metavar="FILE", help="Read the ZeRO settings from a ds_config.")
    ] = None
    target: Annotated[
        choices.Target,
        _zero(help='The program that passes the config to DeepSpeed and fills "auto".'),
    ] = "trainer"
    zero_stage: Annotated[
        str | None,
        _zero(
            metavar="S[,S...]",
            help="ZeRO stage, 0 to 3, if there is no --ds-config; none: without DeepSpeed.",
            callback=required_unless(
                lambda given: given.get("ds_config"),
                "option '--zero-stage'",
                "Pass it, or a file with --ds-config",
            ),
        ),
    ] = None
    offload_optimizer: Annotated[
        choices.OffloadDevice | None, _zero(help="Offload optimizer states. Stages 1 to 3; nvme: 3.")
    ] = None
    offload_param: Annotated[choices.OffloadDevice | None, _zero(help="Offload parameters. Stage 3.")] = None
    precision: Annotated[
        choices.Precision | None,
        _zero(help="Number format.", show_default="the ds_config's, else bf16"),
    ] = None
    autocast: Annotated[
        bool,
        _zero("--autocast", help="With --zero-stage none: weights in fp32, computed in 16 bits."),
    ] = False
    gradient_checkpointing: Annotated[
        bool, _model("--gradient-checkpointing", help="Recompute activations in the backward pass.")
    ] = False
    attention: Annotated[
        choices.Attention | None,
        _model(help="transformers' attn_implementation.", show_default="transformers' choice"),
    ] = None
    optimizer: Annotated[
        choices.OptimizerKind | None,
        _model(
            metavar="NAME",
            help=f"Optimizer of the script: {', '.join(get_args(choices.OptimizerKind))}.",
            show_default="the ds_config's, else the target's",
        ),
    ] = None
    lora_rank: Annotated[int | None, _model(min=1, help="Train only LoRA adapters of this rank.")] = None
    lora_targets: Annotated[
        str | None,
        _model(
            metavar="NAME[,NAME...]",
            help="Modules that get an adapter; all-linear: every linear layer.",
            show_default="peft's default for the model type, else every linear layer",
        ),
    ] = None
    dora: Annotated[bool, _model("--dora", help="With --lora-rank: DoRA.")] = False
    lora_dropout: Annotated[
        bool, _model("--lora-dropout", help="With --lora-rank: lora_dropout is above 0.")
    ] = False
    peft: Annotated[
        choices.PeftMethod | None,
        _model("--peft", help="Train only IA3 factors, or tokens before each sequence."),
    ] = None
    virtual_tokens: Annotated[
        int | None, _model(min=1, help="With --peft: number of learned tokens.", show_default="20")
    ] = None
    load_in_4bit: Annotated[
        bool,
        _model("--load-in-4bit", help="Keep linear layers in 4 bits (bitsandbytes nf4); with --lora-rank."),
    ] = False
    double_quant: Annotated[
        bool, _model("--double-quant", help="With --load-in-4bit: bnb_4bit_use_double_quant.")
    ] = False
    trainable_parameters: Annotated[
        str | None,
        _model(metavar="COUNT", help="Trained parameters, if MODEL is a bare number.", show_default="all"),
    ] = None
    freeze: Annotated[
        list[str] | None,
        _model(metavar="PREFIX", help="Freeze parameters with this prefix. May be repeated."),
    ] = None
    chunked_loss: Annotated[
        bool, _model("--chunked-loss", help="Compute the loss in chunks of tokens, as 'zerokit train' does.")
    ] = False
    liger: Annotated[bool, _model("--liger", help="Use Liger's fused loss.")] = False
    packing: Annotated[
        bool,
        _model(
            "--packing",
            help="Sequences hold several documents; without flash attention a mask separates them.",
        ),
    ] = False
    gpu: Annotated[str | None, gpu_option(_ANSWER, several=True)] = None
    gpu_memory: Annotated[str | None, gpu_memory_option(_ANSWER)] = None
    host_memory: Annotated[str | None, host_memory_option(_ANSWER, AS_RENTED)] = None
    fit: Annotated[
        str | None,
        _answer(
            "--fit",
            metavar="[SIZE]",
            help="Find the largest micro batch, the longest sequences and the fewest GPUs that fit.",
            show_default="SIZE: memory of --gpu",
        ),
    ] = None
    details: Annotated[bool, _answer("--details", help="Print every term, phase and table.")] = False
    explain: Annotated[
        bool, _answer("--explain", help="Print each formula with its numbers and its source.")
    ] = False
    plot: Annotated[Path | None, _answer(metavar="FILE", help="Draw a chart: .png, .svg or .html.")] = None
    output_format: Annotated[choices.OutputFormat, _answer("--format", help="Output format.")] = "text"
    output: Annotated[
        Path | None,
        _answer("--output", "-o", metavar="FILE", help="Also write JSON; - prints only JSON."),
    ] = None
    force: Annotated[bool, _answer("--force", help="Overwrite existing files.")] = False


CARD = "card"
"""The value of ``--fit`` by itself: the memory of the card."""


def sizes(text: str | None, option: str, least: int = 1, most: int | None = None) -> tuple[Any, ...]:
    """Parse ``"1,2,4"`` into distinct numbers; a stage may be the word none.

    Raises:
        ConfigError: not whole numbers, or one below `least` or above `most`.
    """
    found: list[int | str] = []
    for word in () if text is None else text.split(","):
        if word.strip().lower() == "none" and option == SIZES["zero_stage"][0]:
            found.append("none")
            continue
        try:
            size = int(word)
        except ValueError:
            meant = interpret_number(word, of_tokens=option == SIZES["seq_len"][0])
            hint = "Write it like 4, or 1,2,4" if meant is None else f"Write {meant}"
            raise ConfigError(f"'{word}' is not a whole number", where=option, hint=hint) from None
        if size < least:
            raise ConfigError(f"is {size}", where=option, hint=f"Give {least} or more")
        if most is not None and size > most:
            word = ", or none" * (option == SIZES["zero_stage"][0])
            raise ConfigError(f"is {size}", where=option, hint=f"Give {least} to {most}{word}")
        found.append(size)
    return tuple(dict.fromkeys(found))


SIZES: Mapping[str, tuple[str, int, int | None]] = {
    "zero_stage": ("--zero-stage", 0, 3),
    "num_gpus": ("--num-gpus", 1, None),
    "micro_batch_size": ("--micro-batch-size", 1, None),
    "seq_len": ("--seq-len", 1, None),
}
"""Option, minimum and maximum of each parameter that may be a list."""

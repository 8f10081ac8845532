"""The options of ``zerokit config``, by the heading of the help that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from zerokit import choices
from zerokit.cli import completion
from zerokit.cli.gpu_options import gpu_memory_option, gpu_option
from zerokit.cli.output import not_stdout
from zerokit.hardware import GPUS_PER_NODE

_RUN = "The run it is for"
_zero = partial(typer.Option, rich_help_panel="What ZeRO does")
_training = partial(typer.Option, rich_help_panel="Training")
_run = partial(typer.Option, rich_help_panel=_RUN)
_output = partial(typer.Option, rich_help_panel="Output")


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """All options of ``zerokit config``."""

    preset: Annotated[
        str | None,
        _zero(
            metavar="NAME",
            autocompletion=completion.preset,
            help="Start from a usual set of these options: zero1, zero2, zero2_offload, zero3, "
            "zero3_offload_optimizer, zero3_offload, zero3_nvme, zeropp, inference.",
            show_default=False,
        ),
    ] = None
    zero_stage: Annotated[
        int | None,
        _zero(
            min=0,
            max=3,
            help="What ZeRO divides among the GPUs.",
            show_default="chosen with --model, --num-gpus and --gpu",
        ),
    ] = None
    offload_optimizer: Annotated[
        choices.OffloadDevice | None, _zero(help="Keep optimizer states there. Stages 1 to 3; nvme: 3.")
    ] = None
    offload_param: Annotated[choices.OffloadDevice | None, _zero(help="Keep parameters there. Stage 3.")] = (
        None
    )
    nvme_path: Annotated[str | None, _zero(help="Folder on the NVMe device.")] = None
    zero_plus_plus: Annotated[
        bool,
        _zero(
            "--zero-plus-plus",
            help="Gather parameters in 8 bits and inside nodes, reduce gradients in 4 bits. Stage 3.",
        ),
    ] = False
    hpz_size: Annotated[
        int | None,
        _zero(
            min=2,
            help="Ranks that share a second copy of the parameters (ZeRO++'s hpZ). Stage 3.",
            show_default="GPUs per node with --zero-plus-plus, else off",
        ),
    ] = None
    inference: Annotated[
        bool, _zero("--inference", help="For generation: nothing that only training reads.")
    ] = False
    precision: Annotated[
        Literal["auto", choices.Precision] | None,
        _training(
            help="Number format. auto: the Trainer's or accelerate's setting.",
            show_default="auto; bf16 for --target deepspeed",
        ),
    ] = None
    optimizer: Annotated[
        choices.OptimizerName | None,
        _training(
            case_sensitive=False,
            metavar="NAME",
            help="Let DeepSpeed build it: Adam, AdamW, Lion, Lamb, Adagrad, SGD or Muon.",
            show_default="the script's; AdamW for --target deepspeed",
        ),
    ] = None
    scheduler: Annotated[
        choices.SchedulerName | None,
        _training(
            case_sensitive=False,
            metavar="NAME",
            help="Let DeepSpeed build it: WarmupLR (constant), WarmupDecayLR (linear), WarmupCosineLR, "
            "OneCycle.",
            show_default="the script's",
        ),
    ] = None
    learning_rate: Annotated[
        float | None, _training(help="Of the optimizer.", show_default="auto; a start for --target deepspeed")
    ] = None
    warmup_steps: Annotated[
        int | None,
        _training(min=1, help="Of the scheduler.", show_default="auto; 3% of all for --target deepspeed"),
    ] = None
    total_steps: Annotated[
        int | None,
        _training(min=1, help="Optimizer steps of the run, where the scheduler ends.", show_default="auto"),
    ] = None
    micro_batch_size: Annotated[
        int | None,
        _training(
            min=1, help="Samples per forward pass on one GPU.", show_default="auto; 1 for --target deepspeed"
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        _training(
            min=1, help="Forward passes per optimizer step.", show_default="auto; 1 for --target deepspeed"
        ),
    ] = None
    gradient_clipping: Annotated[
        float | None,
        _training(
            min=0,
            help="Largest norm of all gradients; 0: off.",
            show_default="auto; 1.0 for --target deepspeed",
        ),
    ] = None
    activation_checkpointing: Annotated[
        choices.ActivationCheckpointing | None,
        _training(
            help="How deepspeed.checkpointing keeps activations: divided by tensor-parallel ranks, or on the "
            "host. Models of transformers do not call it."
        ),
    ] = None
    target: Annotated[
        choices.Target, _run(help='The program that passes the config to DeepSpeed and fills "auto".')
    ] = "trainer"
    model: Annotated[
        str | None,
        _run(
            autocompletion=completion.model,
            help="Size buckets and buffers for it: a name, a Hub id, a folder, a config.json.",
        ),
    ] = None
    num_gpus: Annotated[int | None, _run(min=1, help="GPUs in all.")] = None
    gpus_per_node: Annotated[int, _run(min=1, help="GPUs of a node.")] = GPUS_PER_NODE
    gpu: Annotated[str | None, gpu_option(_RUN)] = None
    gpu_memory: Annotated[str | None, gpu_memory_option(_RUN)] = None
    explain: Annotated[bool, _output("--explain", help="Print the reason for each key.")] = False
    output: Annotated[
        Path | None,
        _output("--output", "-o", metavar="FILE", help="Write there, not to stdout.", callback=not_stdout),
    ] = None
    accelerate_yaml: Annotated[
        Path | None,
        _output(metavar="FILE", help="Write the config of 'accelerate launch' that goes with it, too."),
    ] = None
    force: Annotated[bool, _output("--force", help="Overwrite existing files.")] = False
    output_format: Annotated[
        choices.OutputFormat, _output("--format", help="Of --explain: a table, or JSON around the config.")
    ] = "text"

"""``zerokit config``: write a valid ds_config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from zerokit.cli.output import print_json, to_json, write_file


def config(
    zero_stage: Annotated[int, typer.Option(min=0, max=3, help="What ZeRO divides among the GPUs.")],
    offload_optimizer: Annotated[
        Literal["cpu", "nvme"] | None,
        typer.Option(help="Keep optimizer states there. Stages 1 to 3; nvme: 3."),
    ] = None,
    offload_param: Annotated[
        Literal["cpu", "nvme"] | None, typer.Option(help="Keep parameters there. Stage 3.")
    ] = None,
    nvme_path: Annotated[str | None, typer.Option(help="Folder on the NVMe device.")] = None,
    precision: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"] | None,
        typer.Option(
            help="Number format. auto: what the Trainer or accelerate is told.",
            show_default="auto; bf16 for --target deepspeed",
        ),
    ] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples per forward pass on one GPU.", show_default="auto; 1 for --target deepspeed"
        ),
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Forward passes per optimizer step.", show_default="auto; 1 for --target deepspeed"
        ),
    ] = None,
    target: Annotated[
        Literal["trainer", "accelerate", "deepspeed"], typer.Option(help="Who hands the config to DeepSpeed.")
    ] = "trainer",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a valid ds_config."""
    from zerokit.config import build_ds_config

    if precision is None:
        precision = "bf16" if target == "deepspeed" else "auto"
    data = build_ds_config(
        zero_stage=zero_stage,
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
        nvme_path=nvme_path,
        precision=None if precision == "auto" else precision,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        target=target,
    ).dump()
    if output is None:
        print_json(data)
    else:
        write_file(output, to_json(data), force=force)

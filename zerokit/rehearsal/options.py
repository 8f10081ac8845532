"""The options of a rehearsal, each declared once: for the command line, for Python and for the ranks' job.

They have no Typer declarations: Python callers may pass a path as text, sizes as integers and overrides as a
mapping. `zerokit.cli.options` makes Typer options of these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from zerokit.choices import Launcher
from zerokit.hardware import GPUS_PER_NODE

REPEATED = ("KEY=VALUE", "PKG[==VERSION]")
"""Metavars of options that may be repeated."""
DRAWINGS = ("trace", "plot", "timeline", "memory_snapshot")
"""The options that name files to draw."""


class Option(NamedTuple):
    """How people see an option."""

    help: str
    flag: str = ""
    """On the command line; empty: from the field's name."""
    metavar: str | None = None
    """Also how its text is read: SIZE, TIME, WORDS and KEY=VALUE are parsed; `REPEATED` may be repeated."""
    default: str | None = None
    """In words, where the value says too little."""
    minimum: int | None = None
    is_argument: bool = False


@dataclass(frozen=True)
class RunOptions:
    """Options that the ranks' job has too."""

    script: Annotated[str | Path, Option("Training script.", metavar="SCRIPT", is_argument=True)]
    arguments: Annotated[
        Sequence[str], Option("Its arguments, passed on unchanged.", metavar="ARGS", is_argument=True)
    ] = ()
    _: KW_ONLY
    num_gpus: Annotated[int, Option("GPUs of the run.", minimum=1)]
    gpus_per_node: Annotated[int, Option("GPUs of one node.", minimum=1)] = GPUS_PER_NODE
    network_gbit_s: Annotated[
        float | None,
        Option(
            "With --time: the network between nodes, in Gbit/s of one node.",
            flag="--network",
            metavar="GBIT",
            default="that of nodes rented with such cards",
        ),
    ] = None
    module: Annotated[bool, Option("SCRIPT is the name of a module.", flag="-m")] = False
    launcher: Annotated[
        Launcher, Option("Give the script the arguments and variables that this launcher gives.")
    ] = "torchrun"
    accelerate_config: Annotated[
        str | Path | None,
        Option("Like accelerate launch --config_file; sets --launcher accelerate.", metavar="FILE"),
    ] = None
    accelerate_arguments: Annotated[
        Sequence[str],
        Option(
            "Other arguments of accelerate launch: '--mixed_precision bf16'; sets --launcher accelerate.",
            metavar="WORDS",
        ),
    ] = ()
    scan_seconds: Annotated[
        float,
        Option(
            "Search the data this long for its largest batches, which are rehearsed after those steps; "
            "0 skips the search.",
            flag="--scan",
            metavar="TIME",
            default="60s",
        ),
    ] = 60.0


@dataclass(frozen=True)
class RehearsalOptions(RunOptions):
    """All options of a rehearsal."""

    _: KW_ONLY
    gpu: Annotated[
        str | None,
        Option(
            "Card: H100, A100-80GB, 4090, mi300x ... 'zerokit gpus' lists them.",
            metavar="NAME",
            default="H100",
        ),
    ] = None
    hardware: Annotated[
        str | Path | None,
        Option("A card that --gpu does not know, or measured figures behind its times.", metavar="FILE"),
    ] = None
    gpu_memory_bytes: Annotated[
        int | None,
        Option(
            "Memory of one GPU, such as 80GiB.",
            flag="--gpu-memory",
            metavar="SIZE",
            default="that of --gpu",
        ),
    ] = None
    host_memory_bytes: Annotated[
        int | None,
        Option(
            "Memory of one node, such as 1TiB.",
            flag="--host-memory",
            metavar="SIZE",
            default="that of nodes rented with such cards",
        ),
    ] = None
    steps: Annotated[
        int | None,
        Option(
            "Stop after this many optimizer steps; 0 runs the script to its end.",
            default="2, or 3 with --time",
            minimum=0,
        ),
    ] = None
    """With `time` 3 by default, because ZeRO-3 prefetches parameters from the third step on."""
    time: Annotated[
        bool, Option("Predict time too: how long a step takes, and what the script's clocks show.")
    ] = False
    real_time: Annotated[bool, Option("With --time: leave the script's own clocks as they are.")] = False
    with_data_time: Annotated[
        bool,
        Option(
            "With --time: include the time to read data, as measured on this machine; else it is reported "
            "separately."
        ),
    ] = False
    rank: Annotated[int | None, Option("Rehearse only this rank.", default="one of each role", minimum=0)] = (
        None
    )
    ds_config_overrides: Annotated[
        Mapping[str, Any] | None,
        Option(
            "Change the ds_config: zero_optimization.stage=3. May be repeated.",
            flag="--ds-config-override",
            metavar="KEY=VALUE",
        ),
    ] = None
    has: Annotated[
        Sequence[str],
        Option(
            "A package that the cluster has and this machine does not, such as flash-attn==2.6.3 or apex: a "
            "stand-in replaces it. May be repeated.",
            metavar="PKG[==VERSION]",
        ),
    ] = ()
    advise: Annotated[
        bool | None,
        Option(
            "Rehearse changes that would help.",
            flag="--advise/--no-advise",
            default="only if it does not fit",
        ),
    ] = None
    timeout: Annotated[
        float | None,
        Option(
            "Give up a rehearsal after this time, and each change that is tried: 90, 5min, 1h.",
            metavar="TIME",
            default="never",
        ),
    ] = None
    trace: Annotated[
        str | Path | None, Option("Write a trace for ui.perfetto.dev; .gz compresses it.", metavar="FILE")
    ] = None
    plot: Annotated[
        str | Path | None, Option("Plot memory over time: .png, .svg or .html.", metavar="FILE")
    ] = None
    timeline: Annotated[
        str | Path | None,
        Option("With --time: plot the streams of a step: .png, .svg or .html.", metavar="FILE"),
    ] = None
    memory_snapshot: Annotated[
        str | Path | None, Option("Write a snapshot for pytorch.org/memory_viz.", metavar="FILE")
    ] = None
    script_prints_on: Literal["stdout", "stderr"] = "stdout"
    """Where the output of the script goes; not on the command line."""
    show: Callable[[Any], None] = lambda _: None
    """Is given the report before changes are rehearsed; not on the command line."""


def described(options: type) -> dict[str, tuple[Any, Option]]:
    """Return the type and the `Option` of each field that has one, by name."""
    hints = get_type_hints(options, include_extras=True)
    found = {}
    for field in fields(options):
        kind, *annotations = get_args(hints[field.name]) or (None,)
        if annotations and isinstance(annotations[0], Option):
            found[field.name] = kind, annotations[0]
    return found

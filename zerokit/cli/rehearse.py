"""``zerokit rehearse``: run a training script on GPUs that are not there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zerokit import choices
from zerokit.cli.gpu_options import (
    AS_RENTED,
    gpu_memory_option,
    gpu_option,
    host_memory_option,
    memory_size,
)
from zerokit.cli.output import STDOUT, Force, OutputFormat, json_on_stdout, not_stdout, print_json, to_json
from zerokit.errors import ZerokitError
from zerokit.extras import require
from zerokit.files import check_writable, write_file
from zerokit.hardware import GPUS_PER_NODE

if TYPE_CHECKING:
    from zerokit.rehearsal.report import RehearsalReport


_NumGpus = Annotated[
    int,
    typer.Option(
        min=1,
        help="GPUs of the run.",
        show_default=False,
    ),
]
_Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script.", show_default=False)]
_Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="Its arguments, handed on untouched.", show_default=False),
]
_GpusPerNode = Annotated[int, typer.Option(min=1, help="GPUs of one node.")]
_Gpu = Annotated[str | None, gpu_option(default="H100")]
_GpuMemory = Annotated[str | None, gpu_memory_option()]
_HostMemory = Annotated[str | None, host_memory_option(default=AS_RENTED)]
_Steps = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Stop after so many optimizer steps; 0 runs the script to its end.",
        show_default="2, or 3 with --time",
    ),
]
_Time = Annotated[
    bool,
    typer.Option(
        "--time", help="Rehearse time, too: how long a step takes, and what the script's clocks show."
    ),
]
_RealTime = Annotated[
    bool, typer.Option("--real-time", help="With --time: leave the script's own clocks as they are.")
]
_WithDataTime = Annotated[
    bool,
    typer.Option(
        "--with-data-time",
        help="With --time: add reading data, as long as it takes on this machine; else it is reported apart.",
    ),
]
_Hardware = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A card that --gpu does not know, or figures of times other than its own.",
        show_default=False,
    ),
]
_Scan = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Look through the data so long for its largest batches, which are rehearsed after those steps; "
        "0 leaves that out.",
    ),
]
_Rank = Annotated[
    int | None,
    typer.Option(min=0, help="Rehearse only this rank.", show_default="one of each role"),
]
_Launcher = Annotated[
    choices.Launcher,
    typer.Option(help="Give the script the arguments and variables that this launcher gives."),
]
_AccelerateConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="As of accelerate launch --config_file; sets --launcher accelerate."),
]
_AccelerateArguments = Annotated[
    str,
    typer.Option(
        metavar="WORDS",
        help="What accelerate launch is given besides: '--mixed_precision bf16'; sets it as the launcher.",
        show_default=False,
    ),
]
_Module = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")]
_DsConfigOverride = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Change the ds_config: zero_optimization.stage=3. May be repeated."
    ),
]
_Has = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PKG[==VERSION]",
        help="A package that the cluster has and this machine does not, such as flash-attn==2.6.3 or apex: a "
        "stand-in takes its place. May be repeated.",
    ),
]
_Advise = Annotated[
    bool | None,
    typer.Option(
        "--advise/--no-advise",
        help="Rehearse changes that would help.",
        show_default="only if it does not fit",
    ),
]
_Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Give up a rehearsal after so long, and each change that is tried: 90, 5min, 1h.",
        show_default="never",
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the report as JSON, too; - prints it alone."),
]
_Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev; .gz compresses it."),
]
_Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw memory over time: .png, .svg or .html.")
]
_Timeline = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --time: draw the streams of a step: .png, .svg or .html."),
]
_MemorySnapshot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a snapshot for pytorch.org/memory_viz.")
]


def rehearse(
    context: typer.Context,
    num_gpus: _NumGpus,
    script: _Script,
    arguments: _Arguments = None,
    gpus_per_node: _GpusPerNode = GPUS_PER_NODE,
    gpu: _Gpu = None,
    hardware: _Hardware = None,
    gpu_memory: _GpuMemory = None,
    host_memory: _HostMemory = None,
    steps: _Steps = None,
    time: _Time = False,
    real_time: _RealTime = False,
    with_data_time: _WithDataTime = False,
    scan: _Scan = "60s",
    rank: _Rank = None,
    launcher: _Launcher = "torchrun",
    accelerate_config: _AccelerateConfig = None,
    accelerate_arguments: _AccelerateArguments = "",
    module: _Module = False,
    ds_config_override: _DsConfigOverride = None,
    has: _Has = None,
    advise: _Advise = None,
    timeout: _Timeout = None,
    output_format: OutputFormat = "text",
    output: _Output = None,
    trace: _Trace = None,
    plot: _Plot = None,
    timeline: _Timeline = None,
    memory_snapshot: _MemorySnapshot = None,
    force: Force = False,
) -> None:
    """Run SCRIPT on virtual GPUs and report its memory. Exits with 1 where it does not fit, 2 where it hangs.

    The real DeepSpeed runs the real script; no GPU is needed and none is used. Options go before SCRIPT.
    """
    require("rehearse", where="zerokit rehearse")  # before its packages are imported

    from zerokit.rehearsal.processes import ExplainedError, ScriptError
    from zerokit.rehearsal.rehearse import rehearse as rehearse_script

    _check_words(script)
    as_json = json_on_stdout(output, output_format)
    output = not_stdout(output)
    drawn = {"--trace": trace, "--plot": plot, "--timeline": timeline, "--memory-snapshot": memory_snapshot}
    for option, file in drawn.items():
        if file == STDOUT:
            raise ZerokitError("is no file", where=f"{option} -", hint="Name one: the report is on stdout")
    for file in (output, *drawn.values()):
        if file is not None:
            check_writable(file, force=force)
    try:
        report = rehearse_script(
            script,
            arguments or [],
            num_gpus=num_gpus,
            gpus_per_node=gpus_per_node,
            gpu=gpu,
            hardware=hardware,
            gpu_memory_bytes=None if gpu_memory is None else memory_size(gpu_memory, "--gpu-memory"),
            host_memory_bytes=None if host_memory is None else memory_size(host_memory, "--host-memory"),
            steps=steps,
            time=time,
            real_time=real_time,
            with_data_time=with_data_time,
            scan_seconds=_seconds(scan, "--scan"),
            rank=rank,
            launcher=launcher,
            accelerate_config=accelerate_config,
            accelerate_arguments=_words(accelerate_arguments, "--accelerate-arguments"),
            module=module,
            ds_config_overrides=dict(map(_override, ds_config_override or [])),
            has=has or [],
            advise=advise,
            timeout=None if timeout is None else _seconds(timeout, "--timeout"),
            trace=trace,
            plot=plot,
            timeline=timeline,
            memory_snapshot=memory_snapshot,
            script_prints_on="stderr" if as_json else "stdout",
        )
    except ExplainedError:
        raise typer.Exit(ZerokitError.exit_code) from None
    except ScriptError as error:
        own = [name for param in context.command.params for name in param.opts]
        late = [word for word in arguments or [] if word.partition("=")[0].replace("_", "-") in own]
        if not late:
            raise
        told = f"{error.hint}. {late[0]} went to the script: if meant for rehearse, put it before {script}"
        raise ZerokitError(error.message, where=error.where, hint=told) from None
    _give(report, as_json, output)


def _give(report: RehearsalReport, as_json: bool, output: Path | None) -> None:
    from zerokit.rehearsal.table import print_report
    from zerokit.reporting.verdicts import exit_code

    data = report.model_dump()
    if output is not None:
        write_file(output, to_json(data))
    if as_json:
        print_json(data)
    else:
        print_report(report)
    raise typer.Exit(ZerokitError.exit_code if report.stuck else exit_code([report.fit.verdict]))


def _seconds(text: str, option: str) -> float:
    from zerokit.units import parse_seconds

    try:
        return parse_seconds(text)
    except ZerokitError as error:
        raise ZerokitError(error.message, where=option, hint=error.hint) from None


def _words(text: str, option: str) -> list[str]:
    """As a shell takes them apart."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ZerokitError(str(error), where=f"{option} {text}", hint="Close the quotation") from None


def _check_words(script: str) -> None:
    """Tell whoever writes ``--scan 5 minutes`` that the second word is taken for the script."""
    from zerokit.documents import is_there
    from zerokit.units import is_unit_of_time

    if is_unit_of_time(script) and not is_there(Path(script)):
        raise ZerokitError(
            "no such script", where=script, hint="Write a time as one word, such as --scan 5min"
        )


def _override(text: str) -> tuple[str, Any]:
    """A dotted key and its value, which is read as JSON if it is JSON."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ZerokitError(
            f"'{text}' is not KEY=VALUE",
            where="--ds-config-override",
            hint="Write it like zero_optimization.stage=3",
        )
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value

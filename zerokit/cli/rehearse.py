"""``zerokit rehearse``: run a training script on GPUs that are not there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from zerokit.cli.output import print_json, to_json, write_file
from zerokit.errors import ZerokitError

if TYPE_CHECKING:
    from zerokit.rehearsal.devices import VirtualDevice
    from zerokit.rehearsal.job import RehearsalJob
    from zerokit.rehearsal.report import RehearsalReport


_NumGpus = Annotated[int, typer.Option(min=1, help="GPUs of the run.", show_default=False)]
_Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script.", show_default=False)]
_Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="Its arguments, handed on untouched.", show_default=False),
]
_GpusPerNode = Annotated[int, typer.Option(min=1, help="GPUs of one node.")]
_Gpu = Annotated[
    str | None, typer.Option(metavar="NAME", help="Card: H100, A100-80, L40S, T4 ...", show_default="H100")
]
_GpuMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of one GPU.", show_default="80GiB, or that of --gpu"),
]
_Steps = Annotated[
    int, typer.Option(min=0, help="Stop after so many optimizer steps; 0 runs the script to its end.")
]
_Rank = Annotated[
    int | None,
    typer.Option(min=0, help="Rehearse only this rank.", show_default="the first and the last"),
]
_Launcher = Annotated[
    Literal["torchrun", "deepspeed", "accelerate"],
    typer.Option(help="Give the script the arguments and variables that this launcher gives."),
]
_AccelerateConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="As of accelerate launch --config_file; sets --launcher accelerate."),
]
_Module = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")]
_DsConfigOverride = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Change the ds_config: zero_optimization.stage=3. May be repeated."
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
    int | None,
    typer.Option(metavar="SECONDS", min=1, max=10**7, help="Give up after so long.", show_default="never"),
]
_OutputFormat = Annotated[Literal["text", "json"], typer.Option("--format", help="Form of the report.")]
_Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report as JSON, too.")
]
_Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev; .gz compresses it."),
]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the memory over time: .png or .svg.")]
_MemorySnapshot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a snapshot for pytorch.org/memory_viz.")
]


def rehearse(
    num_gpus: _NumGpus,
    script: _Script,
    arguments: _Arguments = None,
    gpus_per_node: _GpusPerNode = 8,
    gpu: _Gpu = None,
    gpu_memory: _GpuMemory = None,
    steps: _Steps = 2,
    rank: _Rank = None,
    launcher: _Launcher = "torchrun",
    accelerate_config: _AccelerateConfig = None,
    module: _Module = False,
    ds_config_override: _DsConfigOverride = None,
    advise: _Advise = None,
    timeout: _Timeout = None,
    output_format: _OutputFormat = "text",
    output: _Output = None,
    trace: _Trace = None,
    plot: _Plot = None,
    memory_snapshot: _MemorySnapshot = None,
) -> None:
    """Run SCRIPT on virtual GPUs and report its memory. Exits with 1 if it does not fit.

    The real DeepSpeed runs the real script; no GPU is needed and none is used. Options go before SCRIPT.
    """
    from zerokit.rehearsal.devices import VirtualDevice, card
    from zerokit.rehearsal.job import Overrides, RehearsalJob

    _check_script(script, module)
    _check_ranks(num_gpus, gpus_per_node, rank)
    _check_files(output, trace, plot, memory_snapshot)
    _check_launcher(launcher, accelerate_config)
    device = None if gpu is None else card(gpu)
    overrides = Overrides()
    if ds_config_override:
        overrides["ds_config"] = dict(map(_override, ds_config_override))
    with tempfile.TemporaryDirectory(prefix="zerokit-rehearsal-") as folder:
        job = RehearsalJob(
            script=script,
            module=module,
            launcher="accelerate" if accelerate_config else launcher,
            accelerate_config=_absolute(accelerate_config),
            arguments=arguments or [],
            num_gpus=num_gpus,
            gpus_per_node=gpus_per_node,
            rank=rank or 0,
            steps=steps,
            gpu_memory_bytes=_gpu_memory(gpu_memory, device),
            device=device or VirtualDevice(),
            overrides=overrides,
            cwd=str(Path.cwd()),
            report_file=str(Path(folder) / "report.json"),
            trace_file=_absolute(trace),
            plot_file=_absolute(plot),
            snapshot_file=_absolute(memory_snapshot),
        )
        report = _rehearse(job, rank is None, advise, timeout, output_format == "json")
    _give(report, output_format, output)


def _rehearse(
    job: RehearsalJob, first_and_last: bool, advise: bool | None, timeout: int | None, on_stderr: bool
) -> RehearsalReport:
    from zerokit.rehearsal.advice import advise as rehearse_changes
    from zerokit.rehearsal.analysis import combine
    from zerokit.rehearsal.config_findings import config_findings
    from zerokit.rehearsal.processes import ExplainedError, rehearse_quietly, rehearse_together

    folder = Path(job.report_file).parent
    jobs = [job]
    if first_and_last and job.num_gpus > 1:
        exchange = folder / "exchange"
        exchange.mkdir()
        jobs[0] = job = job.model_copy(update={"exchange_folder": str(exchange)})
        unused = {"trace_file": None, "plot_file": None, "snapshot_file": None}
        last = {"rank": job.num_gpus - 1, "report_file": str(folder / "last.json")}
        jobs.append(job.model_copy(update={**last, **unused}))
    try:
        reports = rehearse_together(jobs, on_stderr=on_stderr, timeout=timeout)
    except ExplainedError:
        raise typer.Exit(ZerokitError.exit_code) from None
    report = combine(*reports) if len(reports) == 2 else reports[0]
    found = config_findings(
        report.run.ds_config,
        num_gpus=job.num_gpus,
        gpus_per_node=report.gpus_per_node,
        gpu_memory_bytes=job.gpu_memory_bytes,
    )
    report = report.model_copy(update={"ds_config_findings": found})
    if advise or (advise is None and report.fit.verdict == "does not fit"):
        larger = max(range(len(jobs)), key=lambda number: reports[number].device.peak_bytes)
        advice = rehearse_changes(
            reports[larger], jobs[larger], folder, lambda changed: rehearse_quietly(changed, timeout)
        )
        report = report.model_copy(update={"advice": advice})
    return report


def _give(report: RehearsalReport, output_format: str, output: Path | None) -> None:
    from zerokit.rehearsal.table import print_report

    data = report.model_dump()
    if output is not None:
        write_file(output, to_json(data), force=True)
    if output_format == "json":
        print_json(data)
    else:
        print_report(report)
    if report.fit.verdict == "does not fit":
        raise typer.Exit(1)


def _check_script(script: str, module: bool) -> None:
    if module:
        if not all(part.isidentifier() for part in script.split(".")):
            raise ZerokitError(
                "is not the name of a module", where=script, hint="Write it like package.train"
            )
    elif not Path(script).is_file():
        hint = "Name a Python file, after all options of zerokit rehearse"
        raise ZerokitError("no such script", where=script, hint=hint)


def _check_ranks(num_gpus: int, gpus_per_node: int, rank: int | None) -> None:
    if rank is not None and rank >= num_gpus:
        raise ZerokitError(
            f"there is no rank {rank} among {num_gpus}", where="--rank", hint=f"Choose 0 to {num_gpus - 1}"
        )
    if num_gpus > gpus_per_node and num_gpus % gpus_per_node:
        raise ZerokitError(
            f"{num_gpus} GPUs do not fill nodes of {gpus_per_node}",
            where="--num-gpus",
            hint="Say with --gpus-per-node how many each node has",
        )


def _check_launcher(launcher: str, accelerate_config: Path | None) -> None:
    if accelerate_config is None:
        return
    if launcher == "deepspeed":
        raise ZerokitError(
            "is of another launcher than deepspeed",
            where="--accelerate-config",
            hint="Leave one of the two options out",
        )
    if not accelerate_config.is_file():
        raise ZerokitError("no such file", where=str(accelerate_config), hint="accelerate config writes one")


def _check_files(output: Path | None, trace: Path | None, plot: Path | None, snapshot: Path | None) -> None:
    from zerokit.rehearsal.files import check_writable
    from zerokit.rehearsal.plot import check_plot

    if plot is not None:
        check_plot(plot)
    for file in (output, trace, plot, snapshot):
        if file is not None:
            check_writable(file)


def _gpu_memory(text: str | None, device: VirtualDevice | None) -> int:
    from zerokit.units import parse_bytes

    if text is None and device is not None:
        return device.total_bytes
    text = text or "80GiB"
    try:
        size = parse_bytes(text)
    except ZerokitError as error:
        raise ZerokitError(error.message, where="--gpu-memory", hint=error.hint) from None
    if size < 2**20:
        raise ZerokitError(f"'{text}' is no GPU's memory", where="--gpu-memory", hint="Write it like 80GiB")
    return size


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


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())

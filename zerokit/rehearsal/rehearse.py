"""`zerokit.rehearse`: rehearse a script on GPUs that are not there, from Python."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from zerokit.choices import Launcher
from zerokit.documents import is_file, is_folder, is_there
from zerokit.errors import ZerokitError, check_choice
from zerokit.files import check_writable, write_file
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import Gpu, some_gpu
from zerokit.hardware.hardware_file import read_hardware
from zerokit.rehearsal.advice import advise as rehearse_changes
from zerokit.rehearsal.combined import combine, on_nodes
from zerokit.rehearsal.config_findings import config_findings, tell_errors
from zerokit.rehearsal.devices import DEFAULT, caveats, virtual_device
from zerokit.rehearsal.exchange import for_a_change
from zerokit.rehearsal.job import Clocks, Overrides, RehearsalJob
from zerokit.rehearsal.launchers import no_such_module
from zerokit.rehearsal.native.build import built_library
from zerokit.rehearsal.processes import ExplainedError, Output, ScriptError, rehearse_together, written_report
from zerokit.rehearsal.report import RehearsalReport
from zerokit.rehearsal.role_watch import RoleWatch
from zerokit.rehearsal.roles import MOST_RANKS, Roles
from zerokit.rehearsal.scratch import scratch_folder
from zerokit.rehearsal.stand_ins.packages import packages_named
from zerokit.rehearsal.watching.overrides import check_overrides
from zerokit.reporting.plots import check_plot
from zerokit.signals import unwound_by_signals
from zerokit.units import quantity


def rehearse(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    num_gpus: int,
    gpus_per_node: int = GPUS_PER_NODE,
    gpu: str | None = None,
    hardware: str | Path | None = None,
    gpu_memory_bytes: int | None = None,
    host_memory_bytes: int | None = None,
    steps: int | None = None,
    time: bool = False,
    real_time: bool = False,
    with_data_time: bool = False,
    scan_seconds: float = 60.0,
    rank: int | None = None,
    launcher: Launcher = "torchrun",
    accelerate_config: str | Path | None = None,
    accelerate_arguments: Sequence[str] = (),
    module: bool = False,
    ds_config_overrides: Mapping[str, Any] | None = None,
    has: Sequence[str] = (),
    advise: bool | None = None,
    timeout: float | None = None,
    trace: str | Path | None = None,
    plot: str | Path | None = None,
    timeline: str | Path | None = None,
    memory_snapshot: str | Path | None = None,
    script_prints_on: Literal["stdout", "stderr"] = "stdout",
) -> RehearsalReport:
    """Run a training script on virtual GPUs, in processes of its own, and report its memory.

    ::

        report = zerokit.rehearse("train.py", ["--deepspeed", "zero3.json"], num_gpus=64, gpu="H100")
        report.device.peak_bytes, report.fit.verdict

    Args:
        script: a Python file, or with `module` the name of a module.
        arguments: of the script, handed on untouched.
        num_gpus: GPUs of the run.
        gpus_per_node: GPUs of one node.
        gpu: a card by its name (:func:`zerokit.hardware.gpus.find_gpu`); None: an H100.
        hardware: a file with a card, and figures behind its times, in place of `gpu`
            (:mod:`zerokit.hardware.hardware_file`).
        gpu_memory_bytes: memory of one GPU, in place of the card's.
        host_memory_bytes: memory of one node; None: that of nodes rented with such cards, if it is known.
        steps: optimizer steps after which the script is ended; 0 lets it run to its end; None: 2, or 3 with
            `time`, for it is the third from which on ZeRO-3 prefetches as it will.
        time: rehearse time, too, that of the card which `gpu` or `hardware` names: the script sees virtual
            clocks, and the report has `time`.
        real_time: leave the script's clocks as they are: only the report tells of virtual time.
        with_data_time: let reading data take as long in virtual time as it does on this machine.
        scan_seconds: how long to look through the data for its largest batches, which are rehearsed after
            those steps; 0 leaves that out.
        rank: the one rank to rehearse; None: one of each role, the first and the last among them.
        launcher: whose arguments and variables the script is given.
        accelerate_config: as of ``accelerate launch --config_file``; then the launcher is accelerate.
        accelerate_arguments: words that ``accelerate launch`` is given besides; likewise.
        module: whether `script` is the name of a module.
        ds_config_overrides: dotted keys of the ds_config and the values to put there.
        has: packages, ``PKG`` or ``PKG==VERSION``, that the cluster has and this machine does not: they are
            stood in for, in that version.
        advise: rehearse changes that would help; None: only if the run does not fit.
        timeout: seconds after which to give up.
        trace: write a trace for ui.perfetto.dev there.
        plot: draw the memory over time there, .png, .svg or .html.
        timeline: draw the streams of a step there, likewise, if `time`.
        memory_snapshot: write a snapshot for pytorch.org/memory_viz there.
        script_prints_on: where what the script prints goes.

    Raises:
        ZerokitError: a size, name or file that cannot be, or the script failed (its traceback is printed), or
            ended without a DeepSpeed engine or an optimizer step.
        ExplainedError: the rehearsal cannot stand in for something; what it is has been printed on stderr.
    """
    _check_script(script, module)
    _check_launcher(launcher, accelerate_config, accelerate_arguments)
    steps = (3 if time else 2) if steps is None else steps
    if steps < 0:
        raise ZerokitError(f"steps is {steps}", hint="Give 0 or more; 0 runs the script to its end")
    if ds_config_overrides:
        check_overrides(ds_config_overrides)
    if timeout is not None and timeout <= 0:
        raise ZerokitError(f"{timeout:g} seconds are none", where="--timeout", hint="Give more than 0")
    if scan_seconds < 0:
        raise ZerokitError(
            f"scan_seconds is {scan_seconds}", hint="Give 0 or more; 0 looks for no larger batch"
        )
    if plot is not None:
        check_plot(Path(plot))
    if timeline is not None:
        check_plot(Path(timeline), "--timeline")
    for file in (trace, plot, timeline, memory_snapshot):
        if file is not None:
            check_writable(Path(file))
    if time and gpu is None and hardware is None:
        raise ZerokitError(
            "there is no time without a card",
            where="--time",
            hint="Name one that zerokit gpus lists, such as --gpu H100, or give its figures: --hardware FILE",
        )
    only_timed = {"--real-time": real_time, "--with-data-time": with_data_time, "--timeline": timeline}
    for option, asked in only_timed.items():
        if asked and not time:
            raise ZerokitError("there is no virtual time", where=option, hint="Add --time")
    cluster = Cluster(num_gpus, gpus_per_node, host_bytes=host_memory_bytes)
    cluster.check_nodes()
    card, figures = _card(gpu, hardware, gpu_memory_bytes, cluster, timed=time)
    cluster = replace(cluster, gpu=card)
    if rank is not None:
        cluster.check_rank(rank)
    packages = packages_named(has)
    overrides = Overrides(ds_config=dict(ds_config_overrides)) if ds_config_overrides else Overrides()
    outputs = {
        **{"trace_file": trace, "plot_file": plot, "timeline_file": timeline},
        "snapshot_file": memory_snapshot,
    }
    with unwound_by_signals(), scratch_folder() as folder, _outputs(outputs, folder) as made:
        job = RehearsalJob(
            script=str(script),
            module=module,
            launcher="accelerate" if accelerate_config or accelerate_arguments else launcher,
            accelerate_config=_absolute(accelerate_config),
            accelerate_arguments=list(accelerate_arguments),
            arguments=list(arguments),
            num_gpus=num_gpus,
            gpus_per_node=gpus_per_node,
            rank=rank or 0,
            steps=steps,
            scan_seconds=scan_seconds,
            device=virtual_device(card),
            timed_on=card if time else None,
            figures=figures,
            clocks=Clocks(script=not real_time, data=with_data_time),
            overrides=overrides,
            has=packages,
            cwd=str(Path.cwd()),
            exchange_folder=str(folder / "exchange") if rank is None and num_gpus > 1 else None,
            report_file=str(folder / "report.json"),
            **made,
        )
        _ = job.prices  # or one line says that the card's speed is not known
        output = Output.SHOWN_ON_STDERR if script_prints_on == "stderr" else Output.SHOWN
        report = _rehearse(job, cluster, advise, timeout, output)
    return report.model_copy(update={"warnings": [*report.warnings, *caveats(card)]})


def _card(
    gpu: str | None, hardware: str | Path | None, memory_bytes: int | None, run: Cluster, *, timed: bool
) -> tuple[Gpu, dict[str, Any] | None]:
    """The card to rehearse, and the figures of a file.

    Raises:
        ZerokitError: there is no such card, the file says what cannot be, or both are given.
    """
    if hardware is None:
        card = some_gpu(gpu or DEFAULT, memory_bytes, timed=timed)
        assert card is not None
        return card, None
    if gpu is not None:
        raise ZerokitError("the file names the card", where="--hardware", hint="Leave out --gpu")
    found = read_hardware(hardware, timed=timed, run=run)
    return found.gpu if memory_bytes is None else found.gpu.with_memory(memory_bytes), dict(found.figures)


@contextmanager
def _outputs(files: Mapping[str, str | Path | None], folder: Path) -> Iterator[dict[str, str]]:
    """Where the worker, which sees an overlay, is to write `files`; they are brought out at the end."""
    made = {kind: folder / kind / Path(path).name for kind, path in files.items() if path is not None}
    for path in made.values():
        path.parent.mkdir()
    try:
        yield {kind: str(path) for kind, path in made.items()}
    finally:
        for kind, path in made.items():
            if path.exists():
                write_file(str(files[kind]), path.read_bytes())


def rehearse_roles(
    first: RehearsalJob, *, output: Output = Output.SHOWN, timeout: float | None = None
) -> tuple[dict[int, RehearsalReport], Roles]:
    """Rehearse the first and the last rank, and one of each other role as soon as it shows.

    Args:
        first: of rank 0, with an exchange folder that is there.
        output: as of :func:`rehearse_together`.
        timeout: likewise.

    Returns:
        Reports by rank, rank 0's first, and the roles of all ranks.
    """
    assert first.exchange_folder is not None
    watch = RoleWatch(Path(first.exchange_folder), first.num_gpus)
    ranks = list(watch.look())

    def more() -> Iterator[RehearsalJob]:
        for rank in watch.look():
            if rank not in ranks:
                ranks.append(rank)
                yield _of_rank(first, rank)

    jobs = [_of_rank(first, rank) for rank in ranks]
    reports = rehearse_together(jobs, output=output, timeout=timeout, more=more)
    stuck = watch.close()
    warnings = reports[0].warnings + [
        f"ranks that differ by their place in the {groups} were taken to be alike: no more than {MOST_RANKS} "
        "ranks are rehearsed. --rank rehearses another one"
        for groups in watch.roles.left_out
    ]
    reports[0] = reports[0].model_copy(update={"stuck": stuck, "warnings": warnings})
    return dict(zip(ranks, reports, strict=True)), watch.roles


def _of_rank(first: RehearsalJob, rank: int) -> RehearsalJob:
    """The job of a rank of the same rehearsal; all but the first leave nothing but their report."""
    if rank == first.rank:
        return first
    files = dict.fromkeys(("trace_file", "plot_file", "timeline_file", "snapshot_file"))
    report = Path(first.report_file).with_name(f"rank-{rank}.json")
    return first.model_copy(update={"rank": rank, "report_file": str(report), **files})


def _rehearse(
    job: RehearsalJob, cluster: Cluster, advise: bool | None, timeout: float | None, output: Output
) -> RehearsalReport:
    built_library()  # here, where what it says is seen; what a worker makes is thrown away
    if job.exchange_folder is not None:
        Path(job.exchange_folder).mkdir()
    try:
        report, fullest = _of_all_ranks(job, cluster, timeout, output)
    except ScriptError:
        tell_errors(written_report(job), cluster)  # one of which may be why
        raise
    found = config_findings(report.run.ds_config, cluster)
    report = report.model_copy(update={"ds_config_findings": found})
    if advise or (advise is None and report.fit.verdict == "does not fit"):
        # A step of all ranks, which wait for each other, is no measure for a step of one alone.
        alone = not report.ranks and not report.roles and report.time is None
        advice, failed = rehearse_changes(
            fullest,
            job,
            Path(job.report_file).parent,
            lambda changed: _rehearse_change(job, changed, cluster, timeout, alone=alone),
        )
        report = report.model_copy(update={"advice": advice, "not_rehearsed": failed})
    return report


def _of_all_ranks(
    job: RehearsalJob, cluster: Cluster, timeout: float | None, output: Output
) -> tuple[RehearsalReport, RehearsalReport]:
    """The report of all ranks that are to be rehearsed, and the same of the one whose GPU holds most."""
    if job.exchange_folder is None:
        reports = {job.rank: rehearse_together([job], output=output, timeout=timeout)[0]}
        report = reports[job.rank]
    else:
        reports, roles = rehearse_roles(job, output=output, timeout=timeout)
        report = combine(reports, roles)
    _check_trained(reports.values(), job.script)
    report = on_nodes(report, cluster)
    fullest = max(reports.values(), key=lambda one: one.device.peak_bytes)
    return report, report.model_copy(update={"device": fullest.device})


def _check_trained(reports: Collection[RehearsalReport], script: str) -> None:
    """Refuse a verdict on a script that has done nothing, or that trains and ended before its first step."""
    if not any(
        report.steps or report.run.ds_config is not None or report.device.peak_bytes for report in reports
    ):
        raise ZerokitError(
            "ended by itself, without a DeepSpeed engine, an optimizer step, or a byte on the GPU: there is "
            "nothing to judge",
            where=script,
            hint="Rehearse the script that trains, with the arguments with which it does",
        )
    idle = [report.run.idle_micro_steps for report in reports if report.fit.verdict != "does not fit"]
    if not idle or None in idle or idle[0] is None:
        return
    done, needed = idle[0]
    hint = "Rehearse it with data and arguments with which it trains"
    if done:
        reached = f"after {done:,} of the {quantity(needed, 'micro-step')} that one takes"
        hint += ", or with fewer gradient_accumulation_steps"
    else:  # engine.step() ends a micro-step
        reached = "as engine.step() was never called"
        hint = f"Call it after each engine.backward(), or {hint[0].lower()}{hint[1:]}"
    raise ZerokitError(
        f"ended by itself before its DeepSpeed engine made an optimizer step, {reached}: there is no step to "
        "judge",
        where=script,
        hint=hint,
    )


def _rehearse_change(
    job: RehearsalJob, changed: RehearsalJob, cluster: Cluster, timeout: float | None, *, alone: bool
) -> RehearsalReport:
    """The report of the rank that holds most with a change.

    Args:
        job: of the run as it is.
        changed: with the change, and a folder of its own.
        cluster: of the run as it is.
        timeout: likewise.
        alone: whether rank 0 is enough, since ranks are alike and take no time.

    Raises:
        ZerokitError: it cannot be rehearsed.
    """
    cluster = replace(cluster, num_gpus=changed.num_gpus, gpus_per_node=changed.gpus_per_node)
    if job.exchange_folder is not None and changed.exchange_folder is not None:
        for_a_change(job, changed, alone=alone)
    try:
        if not alone:
            return _of_all_ranks(changed, cluster, timeout, Output.DROPPED)[1]
        reports = rehearse_together([changed], output=Output.DROPPED, timeout=timeout)
    except ExplainedError as error:
        raise ZerokitError(str(error)) from None
    _check_trained(reports, job.script)
    return on_nodes(reports[0], cluster)


def _check_script(script: str | Path, module: bool) -> None:
    path = Path(script)
    if module:
        _check_module(str(script))
    elif is_folder(path):
        raise ZerokitError("is a folder", where=str(script), hint="Name the Python file in it that trains")
    elif not is_there(path):
        hint = "Name a Python file, after all options of zerokit rehearse"
        raise ZerokitError("no such script", where=str(script), hint=hint)
    elif path.suffix not in ("", ".py", ".pyw", ".pyc"):
        hint = "Name the Python file that trains; what follows it is its own"
        raise ZerokitError(f"is no Python script, but a {path.suffix} file", where=str(script), hint=hint)


def _check_module(name: str) -> None:
    """Refuse what cannot be one; whether a package has such a module is seen when the package is imported."""
    if name.endswith(".py") and is_file(Path(name)):
        raise ZerokitError("is a file, not the name of a module", where=f"-m {name}", hint="Leave out -m")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ZerokitError("is not the name of a module", where=name, hint="Write it like package.train")
    package = name.partition(".")[0]
    here = PathFinder.find_spec(package, [str(Path.cwd())])
    if here is None and package not in sys.modules and find_spec(package) is None:
        raise no_such_module(name)


def _check_launcher(launcher: str, accelerate_config: str | Path | None, arguments: Sequence[str]) -> None:
    check_choice("launcher", launcher, get_args(Launcher))
    if launcher == "deepspeed" and (accelerate_config is not None or arguments):
        raise ZerokitError(
            "is of another launcher than deepspeed",
            where="--accelerate-arguments" if accelerate_config is None else "--accelerate-config",
            hint="Leave one of the two options out",
        )
    if accelerate_config is not None and not is_file(Path(accelerate_config)):
        raise ZerokitError("no such file", where=str(accelerate_config), hint="accelerate config writes one")


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).absolute())

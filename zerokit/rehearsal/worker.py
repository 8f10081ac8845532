"""Runs one rank of a rehearsal in this process: `python -m zerokit.rehearsal.worker JOB.json`.

Exit codes: 0 the report is written; 2 a mistake in the input or a gap of the rehearsal, told in one line on
stderr; 3 the script raised, and its traceback is on stderr as it would be on the cluster; 4 likewise, if it
does not come of a value that was made up.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from zerokit import console, patches
from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.rehearsal import launchers, stacks
from zerokit.rehearsal.call_order import FAILED, SCRIPT_ENDED, STEPS_DONE
from zerokit.rehearsal.call_sites import OWN
from zerokit.rehearsal.error_hints import hint_file, hint_for
from zerokit.rehearsal.errors import RehearsalGap, met_gaps
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.limits import limit_of
from zerokit.rehearsal.process_setup import InstallGroup, virtual_cluster
from zerokit.rehearsal.virtual_rank import VirtualRank
from zerokit.rehearsal.watching.steps import RehearsalComplete

_leave = os._exit
_EXPLAINED = 2
_SCRIPT_FAILED = 3
_FAILED_WITH_VALUES = 4
_PASSING_ON = (OWN, patches.__file__, runpy.run_path.__code__.co_filename)


def main(real_group: InstallGroup | None = None) -> None:
    """Entry point; leaves by :func:`os._exit`, since threads of the script may still run."""
    job = RehearsalJob.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    stacks.answer(job.report_file)
    code = rehearse(job, real_group)
    sys.stdout.flush()
    sys.stderr.flush()
    _leave(code)


def rehearse(job: RehearsalJob, real_group: InstallGroup | None = None) -> int:
    """Run the job and write its report; the exit code of this module's docstring.

    Args:
        job: what to run.
        real_group: as for :func:`virtual_cluster`.
    """
    try:
        with virtual_cluster(
            job.num_gpus,
            gpus_per_node=job.gpus_per_node,
            rank=job.rank,
            steps=job.steps,
            scan_seconds=job.scan_seconds,
            device=job.device,
            overrides=job.overrides,
            real_group=real_group,
            exchange_folder=Path(job.exchange_folder) if job.exchange_folder else None,
            folder=Path(job.report_file).parent,
            prices=job.prices,
            clocks=job.clocks,
            has=job.has,
        ) as rank:
            try:
                return run_in(rank, job)
            finally:
                rank.close()
    except ZerokitError as error:
        console.print_error(error)
        return _EXPLAINED


def run_in(rank: VirtualRank, job: RehearsalJob) -> int:
    """As :func:`rehearse`, as a rank that is set up already."""
    failure: BaseException | None = None
    try:
        try:
            _run_script(job)
        finally:
            with suppress(AttributeError, OSError, ValueError):  # the script may have closed or replaced it
                sys.stdout.flush()  # so that nothing follows its error, which is the last line of a log
    except RehearsalComplete:
        pass
    except SystemExit as stop:
        if stop.code not in (None, 0):
            failure = stop
    except ZerokitError as error:
        console.print_error(error)
        return _EXPLAINED
    except BaseException as error:
        failure = error
    ending = FAILED if failure else STEPS_DONE if rank.steps.stopped else SCRIPT_ENDED
    rank.end(ending)
    limit = limit_of(failure)
    # Before its results, which may fail themselves: a full disk never hides why a script failed.
    if isinstance(failure, SystemExit):
        if isinstance(failure.code, str):
            print(failure.code, file=sys.stderr)  # as Python does
    elif failure is not None and not isinstance(limit, RehearsalGap):
        _print_traceback(failure)
        if hint := hint_for(failure):
            write_file(hint_file(job), hint)
    if limit is None:
        _write_results(job, rank)
    if failure is None:
        return 0
    if limit is not None:
        console.print_error(limit)
        return _EXPLAINED
    return _FAILED_WITH_VALUES if _may_rest_on_values(failure, rank) else _SCRIPT_FAILED


def _may_rest_on_values(failure: BaseException, rank: VirtualRank) -> bool:
    """Whether a script may have raised `failure` because of what it read from the model or of other ranks."""
    kinds = (ArithmeticError, AssertionError, LookupError, ValueError)
    return isinstance(failure, kinds) and (rank.backend.flops > 0 or rank.exchange.stood_for > 0)


def _stay() -> None:
    """Let a script that ends its process by os._exit, as zerokit's own do, come back here instead."""
    leave, process = os._exit, os.getpid()

    def come_back(status: int) -> NoReturn:
        if os.getpid() != process:  # a child of the script's, such as a worker that loads data
            leave(status)
        raise SystemExit(status)

    os._exit = come_back


def _run_script(job: RehearsalJob) -> None:
    """As `python SCRIPT ARGS` or `python -m MODULE ARGS` would."""
    os.chdir(job.cwd)
    _stay()
    launchers.prepare(job)
    sys.argv = [job.script, *launchers.script_arguments(job)]
    if job.module:
        sys.path.insert(0, job.cwd)
        launchers.check_module(job.script)
        runpy.run_module(job.script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(job.script).resolve().parent))
        runpy.run_path(job.script, run_name="__main__")


def _write_results(job: RehearsalJob, rank: VirtualRank) -> None:
    from zerokit.rehearsal import analysis, plot, snapshot, streams_plot, trace

    # What the results themselves allocate is not the script's.
    with rank.backend.uncounted():
        recording = rank.recording(script=job.script, argv=job.arguments, versions=_versions())
        gaps = tuple(str(gap) for gap in met_gaps())
        report = analysis.analyse(recording, job)
        if gaps:
            report = report.model_copy(update={"warnings": [*report.warnings, *gaps]})
        if job.timeline_file and report.time is None:
            untimed = "--timeline: no step was timed, so there is none to draw"
            report = report.model_copy(update={"warnings": [*report.warnings, untimed]})
        write_file(job.report_file, report.model_dump_json(indent=2))
        if job.recording_file:
            recording.save(job.recording_file)
        if job.trace_file:
            trace.write_trace(recording, Path(job.trace_file))
        if job.plot_file:
            plot.write_plot(recording, report, Path(job.plot_file), job.device.total_bytes)
        if job.timeline_file and report.time is not None:
            streams_plot.write_streams_plot(recording, report, Path(job.timeline_file))
        if job.snapshot_file:
            snapshot.write_snapshot(recording, Path(job.snapshot_file))


def _versions() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("torch", "deepspeed", "transformers", "accelerate", "trl", "peft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _print_traceback(failure: BaseException) -> None:
    """Without what only passes on: frames of the rehearsal's own and of runpy that others follow."""
    told = traceback.TracebackException.from_exception(failure)
    one: traceback.TracebackException | None = told
    while one is not None:
        shown = [frame for frame in one.stack[:-1] if not frame.filename.startswith(_PASSING_ON)]
        one.stack = traceback.StackSummary.from_list([*shown, *one.stack[-1:]])
        one = one.__cause__ or one.__context__
    told.print()


if __name__ == "__main__":
    main()

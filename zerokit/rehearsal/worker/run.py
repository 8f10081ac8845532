"""Runs one rank of a rehearsal in this process: `python -m zerokit.rehearsal.worker.run rank-N.job`.

Its exit code is a :class:`WorkerExit`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from zerokit import console, patches
from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.rehearsal.call_sites import OWN
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.job import RehearsalJob, WorkerExit
from zerokit.rehearsal.process_setup import virtual_cluster
from zerokit.rehearsal.ranks.call_order import FAILED, SCRIPT_ENDED, STEPS_DONE
from zerokit.rehearsal.ranks.roles import MOST_RANKS
from zerokit.rehearsal.watching.steps import RehearsalComplete
from zerokit.rehearsal.worker import launchers
from zerokit.rehearsal.worker.failures import hint_for, is_deliberate, is_error_of_zerokit, limit_of
from zerokit.rehearsal.worker.progress import Doing, answer
from zerokit.rehearsal.worker.virtual_rank import VirtualRank

_leave = os._exit
_PASSING_ON = (OWN, patches.__file__, runpy.run_path.__code__.co_filename)


def main() -> None:
    """Entry point; leaves by :func:`os._exit`, since threads of the script may still run."""
    job = RehearsalJob.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer(job.recording_file)
    code = rehearse(job)
    sys.stdout.flush()
    sys.stderr.flush()
    _leave(code)


def rehearse(job: RehearsalJob) -> WorkerExit:
    """Run the job and save its recording; return how the worker ends."""
    try:
        with virtual_cluster(
            job.num_gpus,
            gpus_per_node=job.gpus_per_node,
            rank=job.rank,
            steps=job.steps,
            scan_seconds=job.scan_seconds,
            device=job.device,
            overrides=job.overrides,
            exchange_folder=Path(job.exchange_folder) if job.exchange_folder else None,
            folder=Path(job.recording_file).parent,
            costs=job.costs,
            real_time=job.real_time,
            has=job.has,
        ) as rank:
            rank.events.add(Doing(job.recording_file, job.steps))
            try:
                return run_in(rank, job)
            finally:
                rank.close()
    except ZerokitError as error:
        return _explain(error, job)


def run_in(rank: VirtualRank, job: RehearsalJob) -> WorkerExit:
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
        return _explain(error, job)
    except BaseException as error:
        failure = error
    ending = FAILED if failure else STEPS_DONE if rank.steps.stopped else SCRIPT_ENDED
    rank.end(ending)
    limit, hint = limit_of(failure, rank.suppressed.left_out), hint_for(failure)
    if failure is not None and limit is None and _may_rest_on_others(failure, rank):
        if job.num_gpus <= MOST_RANKS:
            return WorkerExit.NEEDS_EVERY_RANK
        hint = hint or f"With no more than {MOST_RANKS} GPUs, all ranks are rehearsed"
    # Before the recording is saved, which may fail: a full disk never hides why a script failed.
    if isinstance(failure, SystemExit):
        if isinstance(failure.code, str):
            print(failure.code, file=sys.stderr)  # as Python does
    elif failure is not None and not isinstance(limit, RehearsalGap):
        _print_traceback(failure)
    if limit is None:
        _save_recording(job, rank, hint)
    if failure is None:
        return WorkerExit.DONE
    if limit is not None:
        return _explain(limit, job)
    return _failed(failure, rank)


def _failed(failure: BaseException, rank: VirtualRank) -> WorkerExit:
    if is_error_of_zerokit(failure) and not rank.steps.completed:
        return WorkerExit.EXPLAINED  # by the script
    return WorkerExit.FAILED_WITH_VALUES if _may_rest_on_values(failure, rank) else WorkerExit.SCRIPT_FAILED


def _explain(error: ZerokitError, job: RehearsalJob) -> WorkerExit:
    console.print_error(error)
    with suppress(OSError, ZerokitError):  # a full disk: what is printed says all
        errors = [(one.message, one.where, one.hint) for one in (error, *error.others)]
        write_file(job.error_file, json.dumps(errors))
    return WorkerExit.EXPLAINED


def _may_rest_on_values(failure: BaseException, rank: VirtualRank) -> bool:
    """Whether a script may have raised `failure` because of what it read from the model or of other ranks."""
    kinds = (ArithmeticError, AssertionError, LookupError, ValueError)
    return isinstance(failure, kinds) and (rank.backend.flops > 0 or rank.exchange.substituted > 0)


def _may_rest_on_others(failure: BaseException, rank: VirtualRank) -> bool:
    """Whether a script may have raised `failure` because of what a rank held that stands for others."""
    if is_error_of_zerokit(failure):
        return False
    kinds = (AssertionError, LookupError, ValueError, SystemExit)
    return rank.exchange.substituted > 0 and (isinstance(failure, kinds) or is_deliberate(failure))


def _intercept_exit() -> None:
    """Make os._exit, by which zerokit's own scripts end, return here."""
    leave, process = os._exit, os.getpid()

    def come_back(status: int) -> NoReturn:
        if os.getpid() != process:  # a child of the script's, such as a worker that loads data
            leave(status)
        raise SystemExit(status)

    os._exit = come_back


def _run_script(job: RehearsalJob) -> None:
    """As `python SCRIPT ARGS` or `python -m MODULE ARGS` would."""
    os.chdir(job.cwd)
    _intercept_exit()
    launchers.prepare(job)
    sys.argv = [job.script, *launchers.script_arguments(job)]
    if job.module:
        sys.path.insert(0, job.cwd)
        launchers.check_module(job.script)
        runpy.run_module(job.script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(job.script).resolve().parent))
        runpy.run_path(job.script, run_name="__main__")


def _save_recording(job: RehearsalJob, rank: VirtualRank, hint: str | None) -> None:
    # What this itself allocates is not the script's.
    with rank.backend.uncounted():
        rank.recording(_versions(), hint).save(job.recording_file)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "deepspeed", "transformers", "accelerate", "trl", "peft"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _print_traceback(failure: BaseException) -> None:
    """Without what only passes on: frames of the rehearsal's own and of runpy that others follow."""
    shown = traceback.TracebackException.from_exception(failure)
    one: traceback.TracebackException | None = shown
    while one is not None:
        frames = [frame for frame in one.stack[:-1] if not frame.filename.startswith(_PASSING_ON)]
        one.stack = traceback.StackSummary.from_list([*frames, *one.stack[-1:]])
        one = one.__cause__ or one.__context__
    shown.print()


if __name__ == "__main__":
    main()

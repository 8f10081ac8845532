"""Which changes would lower the peak, or make steps faster, each found by rehearsing it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from zerokit.console import note, progress
from zerokit.errors import ZerokitError
from zerokit.rehearsal.parent.job import RehearsalJob
from zerokit.rehearsal.parent.trials import Candidate, faster, smaller
from zerokit.rehearsal.report.report import Advice, NotRehearsed, RehearsalReport
from zerokit.units import format_bytes, format_span

_PARALLEL = 2
_MOST = 5
_SIGNIFICANT = 0.01
"""Share of the peak, or of the GPU time of a token."""
_Outcome = tuple[Candidate, RehearsalReport | ZerokitError]
"""What was rehearsed in the end, and its result."""
_LEAST_FOR_MEMORY = 2
"""At least this many changes that save memory are listed after those that make steps faster."""


def candidates(report: RehearsalReport) -> Iterator[Candidate]:
    """Changes that may lower memory, and, where time is rehearsed and the run fits, time."""
    yield from smaller(report)
    if report.time is not None and report.fit.verdict != "does not fit":
        yield from faster(report)


def advise(
    report: RehearsalReport,
    job: RehearsalJob,
    folder: Path,
    rehearse: Callable[[RehearsalJob, threading.Event], RehearsalReport],
) -> tuple[list[Advice], list[NotRehearsed]]:
    """Rehearse what may help, two changes at a time, and keep what helps most.

    Needed memory and the change that is tried are printed on stderr, because this may take long.

    Args:
        report: of the run as it is.
        job: of the run as it is.
        folder: for the files of the further rehearsals.
        rehearse: gives the report of a job, or raises ZerokitError if it cannot be rehearsed. It ends once
            the event is set.

    Returns:
        The most helpful changes first, and the changes that could not be rehearsed. If time is known and the
        run fits, up to five changes that make tokens faster come first; changes that save memory fill up to
        five, or are two if that is more. Changes that gain 1 % or less are left out unless they make the run
        fit, and so are changes that the host cannot hold.
    """
    chosen = list(candidates(report))
    found = []
    failed = []
    stop = threading.Event()
    if chosen:
        needs = format_span(report.fit.low_bytes, report.fit.high_bytes)
        has = format_bytes(report.fit.gpu_memory_bytes)
        host = "" if _host_holds(report) else ", and the host has too little"
        note(f"{report.fit.verdict}: a GPU needs {needs} of {has}{host}. Now changes are rehearsed")
    with progress(transient=True) as bar, ThreadPoolExecutor(_PARALLEL) as pool:
        task = bar.add_task("Trying changes", total=len(chosen), note="")

        def outcome(number: int, candidate: Candidate) -> _Outcome:
            try:
                return candidate, rehearse(candidate.applied_to(job, folder, number), stop)
            except ZerokitError as error:
                if candidate.otherwise is None or candidate.refusal not in error.message:
                    return candidate, error
            return outcome(number + len(chosen), candidate.otherwise)

        def tried(number: int, candidate: Candidate) -> _Outcome:
            bar.update(task, note=candidate.change, refresh=True)
            if bar.disable:
                note(f"Trying change {number} of {len(chosen)}: {candidate.change}")
            return outcome(number, candidate)

        running: list[Future[_Outcome]] = []
        try:
            for number, candidate in enumerate(chosen, 1):
                running.append(pool.submit(tried, number, candidate))
            for future in as_completed(running):
                bar.update(task, advance=1)
                candidate, changed = future.result()
                if isinstance(changed, ZerokitError):
                    failed.append(NotRehearsed(change=candidate.change, why=changed.message))
                elif candidate.changes_micro_batch and _has_same_batch(report, changed):
                    why = (
                        "the first batch is as large as before: of one example, or not of a size "
                        "that the script gives a DataLoader"
                    )
                    failed.append(NotRehearsed(change=candidate.change, why=why))
                elif _host_holds(changed):
                    found.append(_advice(candidate, report, changed))
        except BaseException:  # Ctrl-C, and a scheduler's signal
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return _best(report, found), sorted(failed, key=lambda one: one.change)


def _best(report: RehearsalReport, found: list[Advice]) -> list[Advice]:
    """The most helpful changes first: by time if it is known and the run fits, then by bytes."""
    if report.fit.verdict == "does not fit":
        chosen = [one for one in found if _saves(report, one) or one.verdict != "does not fit"]
        return sorted(chosen, key=lambda one: (-one.saves_bytes, one.change))[:_MOST]
    smaller = sorted(
        (one for one in found if _saves(report, one)), key=lambda one: (-one.saves_bytes, one.change)
    )
    quicker = sorted(
        (one for one in found if (one.faster or 0) > _SIGNIFICANT and one.verdict != "does not fit"),
        key=lambda one: (-(one.faster or 0), one.change),
    )
    best = quicker[:_MOST]
    return best + [one for one in smaller if one not in best][: max(_MOST - len(best), _LEAST_FOR_MEMORY)]


def _saves(report: RehearsalReport, advice: Advice) -> bool:
    return advice.saves_bytes > _SIGNIFICANT * report.device.peak_bytes


def _has_same_batch(report: RehearsalReport, changed: RehearsalReport) -> bool:
    """Whether the first batch has the same size as before."""
    return (
        report.batches is not None
        and changed.batches is not None
        and changed.batches.first == report.batches.first
    )


def _host_holds(report: RehearsalReport) -> bool:
    return report.fit.host is None or report.fit.host.verdict != "does not fit"


def _advice(candidate: Candidate, report: RehearsalReport, changed: RehearsalReport) -> Advice:
    return Advice(
        change=candidate.change,
        saves_bytes=report.device.peak_bytes - changed.device.peak_bytes,
        peak_bytes=changed.device.peak_bytes,
        host_bytes=changed.host.per_node_peak_bytes,
        verdict=changed.fit.verdict,
        how=candidate.how,
        ds_config=candidate.ds_config,
        step_seconds=None if changed.time is None else changed.time.step_seconds,
        faster=_faster(candidate, report, changed),
    )


def _faster(candidate: Candidate, report: RehearsalReport, changed: RehearsalReport) -> float | None:
    """The share of GPU time that a token saves; of a step where tokens are not known."""
    before, after = report.time, changed.time
    if before is None or after is None or not before.step_seconds:
        return None
    if before.tokens_per_second and after.tokens_per_second:
        more_gpus = changed.world_size / report.world_size
        return 1 - more_gpus * before.tokens_per_second / after.tokens_per_second
    if candidate.resizes_step:
        return None
    return 1 - after.step_seconds / before.step_seconds

"""Rehearses a job: its ranks side by side, then one report of all of them, then changes that would help."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.console import note
from zerokit.documents import dotted
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.lint import check_config
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.native.build import built_library
from zerokit.rehearsal.parent.advice import advise as rehearse_changes
from zerokit.rehearsal.parent.advice import precision
from zerokit.rehearsal.parent.processes import (
    ExplainedError,
    NeedsEveryRankError,
    Output,
    ScriptError,
    run_workers,
    saved_recording,
)
from zerokit.rehearsal.ranks.exchange import prepare_exchange_of_change
from zerokit.rehearsal.ranks.role_watch import RoleWatch
from zerokit.rehearsal.ranks.roles import MOST_RANKS, Roles, request_every_rank
from zerokit.rehearsal.recording import Recording
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.combination import combine, on_nodes
from zerokit.rehearsal.report.drawings import Drawings
from zerokit.rehearsal.report.judgements import fragmentation_line, network_decides, network_line
from zerokit.rehearsal.report.report import ConfigFinding, FileChanges, RehearsalReport
from zerokit.rehearsal.timing.play_together import play_together, step_seconds_by_network
from zerokit.reporting.verdicts import NEGATIVE
from zerokit.resolving.run import Run
from zerokit.units import quantity

_KNOWN_BY_NOW = ("script-optimizer", "script-optimizer-offload")
"""Rules about the optimizer that the script makes: the run has shown that DeepSpeed accepts it."""
_CHEAP_SECONDS = 180.0
"""Of a rehearsal, up to which bf16 is tried without being asked for."""
Reports = dict[int, RehearsalReport]
"""By rank."""


class RehearsedRanks(NamedTuple):
    """The ranks of a job that were rehearsed."""

    recordings: dict[int, Recording]
    """By rank, the first one's first."""
    roles: Roles | None = None
    """Of all ranks; None if one rank was rehearsed alone."""
    stuck: Sequence[str] = ()
    """Where the cluster would wait for ever."""
    files: FileChanges | None = None


def rehearse_and_report(
    job: RehearsalJob,
    cluster: Cluster,
    drawings: Drawings,
    *,
    advise: bool | None,
    timeout: float | None,
    output: Output,
    show: Callable[[RehearsalReport], None] = lambda _: None,
) -> RehearsalReport:
    """Return the report of a job.

    Args:
        job: of the first rank; others are rehearsed too if it has an exchange folder.
        advise: whether to rehearse changes that would help; None: only if the run does not fit.
        timeout: seconds for the ranks of the run, and for those of each change.
        show: is given the report before changes are rehearsed.

    Raises:
        ExplainedError, ZerokitError: as :func:`run_workers`; or the script trained nothing.
    """
    built_library()  # here, where its messages are seen; what a worker builds is thrown away
    if job.exchange_folder is not None:
        Path(job.exchange_folder).mkdir()
    try:
        rehearsed = rehearse_roles(job, output=output, timeout=timeout)
    except ScriptError:
        recording = saved_recording(job)
        if recording is not None:
            facts = recording.facts
            used = facts.refused_ds_config or facts.ds_config
            for found in config_findings(used, cluster, facts.data_parallel_ranks):
                if found.severity == "error":  # which may be the reason
                    note(str(found))
            drawings.write(recording, analyse(recording, job))
        raise
    recordings, reports = _reports(rehearsed, job)
    untimed = drawings.write(recordings[job.rank], reports[job.rank])
    report, fullest = _of_all_ranks(reports, rehearsed, cluster, job.script)
    ranks = recordings[job.rank].facts.data_parallel_ranks
    update = {"ds_config_findings": config_findings(report.run.ds_config, cluster, ranks)}
    report = report.model_copy(update={**update, "warnings": [*report.warnings, *untimed]})
    if (fragmented := fragmentation_line(fullest.device, report.fit)) is not None:
        line, decides = fragmented
        report = report.with_warning(line, is_mistake=decides)
    report = _with_other_networks(report, recordings, rehearsed.roles, job)
    in_full = advise or (advise is None and report.fit.verdict in NEGATIVE)
    cheap = list(precision(fullest)) if advise is None and report.elapsed_seconds < _CHEAP_SECONDS else []
    show(report)
    if in_full or cheap:
        # A step of ranks that wait for each other is not comparable to a step of one rank alone.
        alone = not report.ranks and not report.roles and report.time is None
        rehearse_change = partial(_rehearse_change, job, cluster, timeout, alone)
        folder = Path(job.recording_file).parent
        outcome = rehearse_changes(fullest, job, folder, rehearse_change, None if in_full else cheap)
        report = report.model_copy(update=outcome._asdict())
    return report


def config_findings(
    ds_config: Mapping[str, Any] | None, cluster: Cluster, data_parallel_ranks: int | None = None
) -> list[ConfigFinding]:
    """Errors and warnings about the config that DeepSpeed read, in its order; empty without an engine."""
    if ds_config is None:
        return []
    run = Run(target="deepspeed", cluster=cluster, data_parallel_ranks=data_parallel_ranks)
    report = check_config(ds_config, run)  # with all values filled
    return [
        ConfigFinding(
            rule=finding.rule,
            severity=finding.severity,
            path=dotted(finding.path),
            message=finding.message,
            hint=finding.hint,
        )
        for finding in report.findings
        if finding.severity != "info" and finding.rule not in _KNOWN_BY_NOW
    ]


def rehearse_roles(
    first: RehearsalJob,
    *,
    output: Output = Output.SHOWN,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    alone: bool = False,
) -> RehearsedRanks:
    """Rehearse the first and the last rank, and one of each other role as soon as it shows.

    The first rank is rehearsed alone if its job has no exchange folder. Arguments are as of
    :func:`run_workers`.
    """
    if alone or first.exchange_folder is None:
        recordings, files = run_workers([first], output=output, timeout=timeout, stop=stop)
        return RehearsedRanks({first.rank: recordings[0]}, files=files)
    try:
        return _rehearse_roles(first, Path(first.exchange_folder), output, timeout, stop)
    except NeedsEveryRankError:
        if output is not Output.DROPPED:
            ranks = quantity(first.num_gpus, "rank")
            note(f"{first.script} fails on values of ranks that were not rehearsed: again, with all {ranks}")
        request_every_rank(Path(first.exchange_folder))
        return _rehearse_roles(first, Path(first.exchange_folder), output, timeout, stop)


def _rehearse_roles(
    first: RehearsalJob, exchange: Path, output: Output, timeout: float | None, stop: threading.Event | None
) -> RehearsedRanks:
    watch = RoleWatch(exchange, first.num_gpus)
    ranks = list(watch.update_roles())

    def more() -> Iterator[RehearsalJob]:
        for rank in watch.update_roles():
            if rank not in ranks:
                ranks.append(rank)
                yield first.of_rank(rank)

    jobs = [first.of_rank(rank) for rank in ranks]
    recordings, files = run_workers(jobs, output=output, timeout=timeout, more=more, stop=stop)
    stuck = watch.close()
    return RehearsedRanks(dict(zip(ranks, recordings, strict=True)), watch.roles, stuck, files)


def _reports(rehearsed: RehearsedRanks, job: RehearsalJob) -> tuple[dict[int, Recording], Reports]:
    """The recording of each rank, in the time of ranks that wait for each other, and its report."""
    recordings = rehearsed.recordings
    if rehearsed.roles is not None and job.costs is not None:
        recordings = play_together(recordings, rehearsed.roles, job.costs.beside_collective)
    reports = {}
    for rank, recording in recordings.items():
        report = analyse(recording, job.of_rank(rank))
        reports[rank] = report.model_copy(update={"files": rehearsed.files, "stuck": list(rehearsed.stuck)})
    if rehearsed.roles is not None:
        warnings = reports[0].warnings + [
            f"ranks that differ by their place in the {groups} were taken to be alike: no more than "
            f"{MOST_RANKS} ranks are rehearsed. --rank rehearses another one"
            for groups in rehearsed.roles.left_out
        ]
        reports[0] = reports[0].model_copy(update={"warnings": warnings})
    return recordings, reports


def _with_other_networks(
    report: RehearsalReport, recordings: Mapping[int, Recording], roles: Roles | None, job: RehearsalJob
) -> RehearsalReport:
    """The report with the times on other networks, if the assumed one decides the time of a step."""
    time, costs = report.time, job.costs
    if time is None or costs is None or roles is None or not network_decides(time, costs):
        return report
    beside = costs.beside_collective
    by_network = step_seconds_by_network(recordings, roles, beside, time.rank, time.step)
    line = network_line(time, costs, by_network)
    if line is None:
        return report
    timed = report.model_copy(update={"time": time.model_copy(update={"by_network": by_network})})
    return timed.with_warning(line)


def _of_all_ranks(
    reports: Reports, rehearsed: RehearsedRanks, cluster: Cluster, script: str
) -> tuple[RehearsalReport, RehearsalReport]:
    """One report of all ranks, and the same with the device of the rank whose GPU holds most."""
    if rehearsed.roles is None:
        (report,) = reports.values()
    else:
        report = combine(reports, rehearsed.roles)
    _check_trained(list(reports.values()), script, next(iter(rehearsed.recordings.values())).facts.hint)
    report = on_nodes(report, cluster)
    fullest = max(reports.values(), key=lambda one: one.device.peak_bytes)
    return report, report.model_copy(update={"device": fullest.device})


def _check_trained(reports: list[RehearsalReport], script: str, hint: str | None) -> None:
    """Refuse a verdict on a script that has done nothing, or that trains and ended before its first step.

    `hint` may be the reason of the former.
    """
    if not any(one.steps or one.run.ds_config is not None or one.device.peak_bytes for one in reports):
        raise ZerokitError(
            "the script ended without training", where=script, hint=hint or "Pass the arguments that start training"
        )
    idle = [report.run.idle_micro_steps for report in reports if report.fit.verdict != "does not fit"]
    if not idle or None in idle or idle[0] is None:
        return
    done, needed = idle[0]
    fit = "pass the data and arguments that start training"
    if done:
        reached = f"after {done:,} of the {quantity(needed, 'micro-step')} that one takes"
        hint = f"{fit.capitalize()}, or set fewer gradient_accumulation_steps"
    else:  # engine.step() ends a micro-step
        reached = "as engine.step() was never called"
        hint = f"Call it after each engine.backward(), or {fit}"
    message = f"the script ended before its DeepSpeed engine made an optimizer step, {reached}"
    raise ZerokitError(message, where=script, hint=hint)


def _rehearse_change(
    job: RehearsalJob,
    cluster: Cluster,
    timeout: float | None,
    alone: bool,
    changed: RehearsalJob,
    stop: threading.Event,
) -> RehearsalReport:
    """The report of the rank that holds most when `job` is `changed`; `alone`: rehearse rank 0 only.

    Raises:
        ZerokitError: it cannot be rehearsed.
    """
    cluster = replace(cluster, num_gpus=changed.num_gpus, gpus_per_node=changed.gpus_per_node)
    if job.exchange_folder is not None and changed.exchange_folder is not None:
        prepare_exchange_of_change(job, changed, alone=alone)
    try:
        rehearsed = rehearse_roles(changed, output=Output.DROPPED, timeout=timeout, stop=stop, alone=alone)
    except ExplainedError as error:  # advice shows the message alone
        raise ZerokitError(str(error)) from None
    _, reports = _reports(rehearsed, changed)
    return _of_all_ranks(reports, rehearsed, cluster, job.script)[1]

"""One report of all ranks that were rehearsed, and of the nodes that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from zerokit.hardware.cluster import Cluster
from zerokit.rehearsal.ranks.roles import Roles
from zerokit.rehearsal.report.analysis import RANKS_DIFFER
from zerokit.rehearsal.report.judgements import whole_model_line
from zerokit.rehearsal.report.report import (
    Fit,
    HostMemory,
    NvmeMemory,
    RankMemory,
    RehearsalReport,
    RoleDevice,
    RoleMemory,
    TimeReport,
)
from zerokit.reporting.verdicts import VERDICTS, host_fit, worst
from zerokit.units import MIB

T = TypeVar("T")

_ABOUT = 0.01
"""Share of a step by which ranks that wait for each other may differ at its end."""
_STAGES = "pipeline stages"
"""In the names of roles of several stages."""


def combine(reports: Mapping[int, RehearsalReport], roles: Roles) -> RehearsalReport:
    """One report of several ranks (by rank, rank 0 first), with the figures of each where they differ.

    It is rank 0's where all ranks have one role, else that of the rank that needs most; so is the verdict.
    A node holds what its ranks hold, each of which is like the one that stands for it.
    """
    shown = max(reports.values(), key=lambda report: _need(report.fit))
    if len(roles.names) == 1:
        shown = reports[0]
    ranks = [_rank(rank, report) for rank, report in reports.items()]
    # Not every stage of a pipeline is given batches.
    batches = (report.batches for report in (shown, *reports.values()) if report.batches is not None)
    time, doubts = _time(reports, roles)
    return shown.model_copy(
        update={
            "batches": next(batches, None),
            "host": _host_of_node(shown, reports, roles),
            "nvme": _nvme_of_node(shown, reports, roles),
            "fit": max((report.fit for report in reports.values()), key=_need),
            "ranks": ranks if _differ(ranks) else [],
            "ranks_rehearsed": list(reports),
            "roles": [] if len(roles.names) == 1 else _roles(reports, roles),
            "time": time,
            "mistakes": _joined(report.mistakes for report in reports.values()),
            "warnings": _joined([*(report.warnings for report in reports.values()), doubts]),
            "made_up": _joined(report.made_up for report in reports.values()),
            "suppressed": _joined(report.suppressed for report in reports.values()),
        }
    )


def _time(reports: Mapping[int, RehearsalReport], roles: Roles) -> tuple[TimeReport | None, list[str]]:
    """The time of the rank that others wait for, and reasons not to trust it."""
    times = {rank: report.time for rank, report in reports.items() if report.time is not None}
    if not times:
        return None, []
    together = [name for name in roles.names if _STAGES in name]
    if together:
        # What they send each other comes together on no rehearsed rank.
        return None, [
            f"{', '.join(together)} were rehearsed as one each, which cannot wait for each other as the "
            "stages of the real pipeline do: no time is reported"
        ]
    slowest = max(time.step_seconds for time in times.values())
    # Ranks that wait for each other need about as long for a step.
    needing = [time for time in times.values() if time.step_seconds >= (1 - _ABOUT) * slowest]
    shown = min(needing, key=lambda time: time.breakdown.other_ranks)
    tokens = [one.tokens_per_second * one.step_seconds for one in times.values() if one.tokens_per_second]
    return shown.model_copy(
        update={
            # Each rank takes all others to be given as many as itself.
            "tokens_per_second": sum(tokens) / len(tokens) / shown.step_seconds if tokens else None,
            "mfu": _mean(roles, shown, {rank: time.mfu for rank, time in times.items()}, times),
            "hfu": _mean(roles, shown, {rank: time.hfu for rank, time in times.items()}, times),
        }
    ), []


def _mean(
    roles: Roles, shown: TimeReport, used: Mapping[int, float | None], times: Mapping[int, TimeReport]
) -> float | None:
    """The share of all cards that is used in the shown rank's step."""
    done = {rank: share * times[rank].step_seconds for rank, share in used.items() if share is not None}
    # Of ranks that are alike, each of those rehearsed is an example.
    ranks = roles.rehearsed if len(roles.names) == 1 else range(len(roles.of_rank))
    of_all = [done.get(roles.stands_for(rank)) for rank in ranks]
    known = [one for one in of_all if one is not None]
    if len(known) < len(of_all) or not shown.step_seconds:
        return None
    return sum(known) / len(known) / shown.step_seconds


def _differ(ranks: list[RankMemory]) -> bool:
    figures = [rank.model_dump(exclude={"rank", "peak_phase", "host_steady_bytes", "verdict"}) for rank in ranks]
    for name in figures[0]:
        values = [held[name] for held in figures]
        if max(values) - min(values) > max(RANKS_DIFFER * max(values), MIB):
            return True
    return False


def _roles(reports: Mapping[int, RehearsalReport], roles: Roles) -> list[RoleMemory]:
    found = []
    for number, name in enumerate(roles.names):
        rehearsed = roles.standing_for[number]
        ranks = [rank for rank, role in enumerate(roles.of_rank) if role == number]
        device = RoleDevice(**reports[rehearsed].device.model_dump(include=set(RoleDevice.model_fields)))
        found.append(RoleMemory(role=name, ranks=ranks, rehearsed=rehearsed, device=device))
    return found


def _most_on_a_node(shown: RehearsalReport, roles: Roles, held: Mapping[int, int]) -> int:
    """The largest sum over the ranks of a node of what those that stand for them hold."""
    of_all = [held[roles.stands_for(rank)] for rank in range(shown.world_size)]
    local = shown.gpus_per_node
    return max(sum(of_all[start : start + local]) for start in range(0, len(of_all), local))


def _host_of_node(shown: RehearsalReport, reports: Mapping[int, RehearsalReport], roles: Roles) -> HostMemory:
    node = {
        f"per_node_{name}": _most_on_a_node(
            shown, roles, {rank: getattr(report.host, name) for rank, report in reports.items()}
        )
        for name in ("peak_bytes", "steady_bytes", "pinned_bytes")
    }
    return shown.host.model_copy(update=node)


def _nvme_of_node(shown: RehearsalReport, reports: Mapping[int, RehearsalReport], roles: Roles) -> NvmeMemory | None:
    found = [report.nvme for report in (shown, *reports.values()) if report.nvme is not None]
    if not found:
        return None
    held = {rank: report.nvme.per_rank_bytes if report.nvme else 0 for rank, report in reports.items()}
    return found[0].model_copy(update={"per_node_bytes": _most_on_a_node(shown, roles, held)})


def on_nodes(report: RehearsalReport, cluster: Cluster) -> RehearsalReport:
    """The report with what a node of `cluster` holds judged, too."""
    nvme = 0 if report.nvme is None else report.nvme.per_node_bytes
    host = host_fit(cluster, report.host.per_node_peak_bytes, nvme)
    fit = report.fit.model_copy(update={"host": host, "verdict": worst(report.fit.verdict, host.verdict)})
    judged = report.model_copy(update={"fit": fit})
    line = whole_model_line(judged)
    return judged if line is None else judged.with_warning(line)


def _joined(of_ranks: Iterable[list[T]]) -> list[T]:
    """The items of all ranks, each once, in their order."""
    joined: list[T] = []
    for lines in of_ranks:
        joined += [line for line in lines if line not in joined]
    return joined


def _need(fit: Fit) -> tuple[int, int]:
    return VERDICTS.index(fit.verdict), fit.high_bytes


def _rank(rank: int, report: RehearsalReport) -> RankMemory:
    device, host = report.device, report.host
    return RankMemory(
        rank=rank,
        device_peak_bytes=device.peak_bytes,
        device_steady_bytes=device.steady_bytes,
        reserved_peak_bytes=device.reserved_peak_bytes,
        peak_phase=device.peak_phase,
        host_peak_bytes=host.peak_bytes,
        host_steady_bytes=host.steady_bytes,
        pinned_bytes=host.pinned_bytes,
        verdict=report.fit.verdict,
    )

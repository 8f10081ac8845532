"""The report of a rehearsal for a terminal: the verdict and one table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zerokit.rehearsal.report.report import RehearsalReport, TimeReport
from zerokit.rehearsal.report.tables import (
    breakdown_rows,
    category_rows,
    detailed_parts,
    faster,
    heading,
    milliseconds,
    moment,
    verdict,
)
from zerokit.reporting.phases import phase_words
from zerokit.reporting.tables import table
from zerokit.reporting.terminal import show
from zerokit.reporting.verdicts import stuck_line
from zerokit.units import format_bytes, format_span, quantity

if TYPE_CHECKING:
    from zerokit.reporting.tables import Row
    from zerokit.reporting.terminal import Part

_MOST_ROWS = 20
_MOST_CHANGES = 2


def print_report(report: RehearsalReport, *, details: bool = False) -> None:
    """Print `report` on stdout: the verdict and one table, or every table."""
    show(detailed_parts(report) if details else _summary(report))


def _summary(report: RehearsalReport) -> Iterator[Part]:
    yield from map(stuck_line, report.stuck)
    yield verdict(report)
    yield heading(report)
    yield ""
    rows = [*_memory(report), *_roles(report), *_time(report.time), *_changes(report)]
    yield table("Memory and time" if report.time else "Memory", (), rows[:_MOST_ROWS])
    notes = len(report.warnings) + len(report.made_up) + len(report.suppressed)
    counts = [quantity(notes, "note")] if notes else []
    if report.ds_config_findings:
        counts.append(quantity(len(report.ds_config_findings), "finding") + " on the ds_config")
    said = f"{' and '.join(counts)}, and more tables" if counts else "More tables"
    yield f"{said}: --details prints them"


def _memory(report: RehearsalReport) -> Iterator[Row]:
    device, host, fit = report.device, report.host, report.fit
    needed = format_span(fit.low_bytes, fit.high_bytes)
    yield "GPU, needed", needed, f"of {format_bytes(fit.gpu_memory_bytes)}"
    yield "GPU, allocated at the peak", format_bytes(device.peak_bytes), f"in {moment(device)}"
    yield from ((f"  {name}", size, share) for name, size, share in category_rows(report))
    yield "GPU, after the last step", format_bytes(device.steady_bytes), ""
    memory = fit.host.memory_bytes if fit.host is not None else None
    of_node = "" if memory is None else f"of {format_bytes(memory)}"
    yield "Host, one node", format_bytes(host.per_node_peak_bytes), of_node
    if report.nvme is not None:
        yield "NVMe, one node", format_bytes(report.nvme.per_node_bytes), ""


def _roles(report: RehearsalReport) -> Iterator[Row]:
    for role in report.roles:
        peak = format_bytes(role.device.peak_bytes)
        yield f"GPU, {role.role}", peak, f"in {phase_words(role.device.peak_phase)}"


def _time(time: TimeReport | None) -> Iterator[Row]:
    if time is None:
        return
    span = f"{milliseconds(time.low_seconds)} to {milliseconds(time.high_seconds)}"
    yield f"Step {time.step}", milliseconds(time.step_seconds), span
    if time.tokens_per_second is not None:
        mfu = "" if time.mfu is None else f"MFU {time.mfu:.1%}"
        yield "Tokens per second, all GPUs", f"{time.tokens_per_second:,.0f}", mfu
    yield from ((f"  {name}", span, share) for name, span, share in breakdown_rows(time))


def _changes(report: RehearsalReport) -> Iterator[Row]:
    for advice in report.advice[:_MOST_CHANGES]:
        saved = f"saves {format_bytes(advice.saves_bytes)}" if advice.saves_bytes > 0 else faster(advice)
        yield f"Change: {advice.change}", saved, advice.verdict

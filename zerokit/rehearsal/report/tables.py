"""The report of a rehearsal for a terminal: the verdict and one table, or every table (``--details``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zerokit.hardware.costs.ranges import range_line
from zerokit.hardware.gpus import gpu_of_torch
from zerokit.rehearsal.report.report import (
    Advice,
    Batches,
    BlockMemory,
    DeviceMemory,
    FileChanges,
    Fit,
    RehearsalReport,
    TimeReport,
)
from zerokit.reporting.categories import category_words
from zerokit.reporting.phases import phase_words
from zerokit.reporting.tables import Cells, Row, table
from zerokit.reporting.terminal import Part, show
from zerokit.reporting.verdicts import stuck_line, verdict_line
from zerokit.reporting.work import TIME_PARTS
from zerokit.units import format_bytes, format_count, format_seconds, format_span, quantity

if TYPE_CHECKING:
    from rich.text import Text

_MOST_ROWS = 20
_MOST_CHANGES = 2
_MOST_ERRORS = 3
_WRONG_CARD = "bf16-on-older-card"
"""Shown below the verdict although it is a warning: bf16 is slow on such a card."""


def print_report(report: RehearsalReport, *, details: bool = False) -> None:
    """Print `report` on stdout: the verdict and one table, or every table."""
    show(detailed_parts(report) if details else _summary(report))


def print_advice(report: RehearsalReport) -> None:
    """Print the changes that would help; nothing if none was tried."""
    show(_advice(report))


def _summary(report: RehearsalReport) -> Iterator[Part]:
    found = sorted(report.ds_config_findings, key=lambda one: one.rule != _WRONG_CARD)
    errors = [str(one) for one in found if one.severity == "error" or one.rule == _WRONG_CARD]
    more = [f"{len(errors) - _MOST_ERRORS} more: --details"] if len(errors) > _MOST_ERRORS else []
    yield from _head(report, [*errors[:_MOST_ERRORS], *more])
    rows = [*_memory_rows(report), *_time_rows(report.time), *_changes_rows(report)]
    yield table("Memory and time" if report.time else "Memory", (), rows[: _MOST_ROWS - bool(report.time)])
    if report.time:
        yield range_line(report.time.run_class, report.time.narrower_with)
    notes = len(_further(report)) + len(report.made_up) + len(report.suppressed)
    counts = [quantity(notes, "note")] if notes else []
    if hidden := len(report.ds_config_findings) - min(len(errors), _MOST_ERRORS):
        counts.append(quantity(hidden, "finding") + " on the ds_config")
    tables = f"{' and '.join(counts)}, and more tables" if counts else "More tables"
    yield f"{tables}: --details prints them"


def _head(report: RehearsalReport, errors: Sequence[str] = ()) -> Iterator[Part]:
    yield from map(stuck_line, report.stuck)
    yield verdict(report)
    yield from errors
    yield from (f"Warning: {mistake}" for mistake in report.mistakes)
    yield heading(report)
    yield ""


def _further(report: RehearsalReport) -> list[str]:
    """The warnings that do not stand below the verdict."""
    return [line for line in report.warnings if line not in report.mistakes]


def _memory_rows(report: RehearsalReport) -> Iterator[Row]:
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
    for role in report.roles:
        peak = format_bytes(role.device.peak_bytes)
        yield f"GPU, {role.role}", peak, f"in {phase_words(role.device.peak_phase)}"


def _time_rows(time: TimeReport | None) -> Iterator[Row]:
    if time is None:
        return
    span = f"{milliseconds(time.low_seconds)} to {milliseconds(time.high_seconds)}"
    yield f"Step {time.step}", milliseconds(time.step_seconds), span
    if time.tokens_per_second is not None:
        yield "Tokens per second, all GPUs", f"{time.tokens_per_second:,.0f}", ""
    if time.mfu is not None and time.hfu is not None:
        yield "MFU", f"{time.mfu:.1%}", f"HFU {time.hfu:.1%}"
    yield from ((f"  {name}", span, share) for name, span, share in breakdown_rows(time))


def _changes_rows(report: RehearsalReport) -> Iterator[Row]:
    for advice in report.advice[:_MOST_CHANGES]:
        saved = f"saves {format_bytes(advice.saves_bytes)}" if advice.saves_bytes > 0 else faster(advice)
        yield f"Change: {advice.change}", saved, advice.verdict


_STEPS_DIFFER = 0.01
"""Of the peak; less is noise from caches and small buffers."""
_MOST_LINES = 10
_MOST_PATHS = 5
"""Of files, and of links of the critical path."""
_LAYER = re.compile(r"\.\d+(?=\.|$)")
"""The number of a layer in a parameter's name."""


def detailed_parts(report: RehearsalReport) -> Iterator[Part]:
    """Every figure of a report, for a terminal."""
    yield from _head(report)
    if report.time is not None:
        yield from time_parts(report.time, of_several=len(report.ranks_rehearsed) > 1)
    yield _memory(report)
    yield from _ranks(report)
    yield from _needed(report.fit, report.device)
    if report.batches is not None:
        yield from _batches(report.batches)
    if report.evaluation is not None:
        evaluation = report.evaluation
        yield f"Evaluation, at the end: {evaluation.largest}, the largest of {evaluation.scanned:,} batches"
    yield ""
    phases = [(phase_words(name), held) for name, held in report.device.by_phase.items()]
    yield table("Peak by phase", ["Phase", "GPU, allocated"], phases)
    yield from _steps(report)
    if report.device.peak_bytes:
        yield table("At the peak, by category", ["Category", "Bytes", "Share"], category_rows(report))
        yield _sites(report)
        yield _blocks(report)
    yield _host_categories(report)
    yield from _communication(report)
    yield from _advice(report)
    yield from _notes(report)
    if report.files is not None:
        yield ""
        yield from _files(report.files)
    if report.time is not None:
        yield ""
        # Once more: the first line is out of sight by now.
        yield _verdict_line(report.fit).append(f"; a step {_takes(report.time)}")


def _verdict_line(fit: Fit) -> Text:
    return verdict_line(fit.verdict, fit.low_bytes, fit.high_bytes, fit.gpu_memory_bytes, fit.host)


def verdict(report: RehearsalReport) -> Text:
    """The answer, by how much, and what decides."""
    fit = report.fit
    line = _verdict_line(fit)
    for words in _margins(fit):
        line.append(f"; {words}")
    line.append(f". Peak: {_fullest(report)}")
    line.append(f"; largest batch {fit.batch}" if fit.batch else "")
    errors = sum(found.severity == "error" for found in report.ds_config_findings)
    return line.append(f"; {quantity(errors, 'error')} in the ds_config" if errors else "")


def _margins(fit: Fit) -> Iterator[str]:
    held = [("GPU", fit.low_bytes, fit.gpu_memory_bytes)]
    if fit.host is not None and fit.host.memory_bytes is not None:
        held.append(("host", fit.host.needed_low_bytes, fit.host.memory_bytes))
    for what, low, memory in held:
        if low > memory:
            yield f"at least {format_bytes(low - memory)} too much for the {what}"
    if fit.verdict == "fits":
        yield f"at least {format_bytes(fit.gpu_memory_bytes - fit.high_bytes)} of the GPU to spare"


def _fullest(report: RehearsalReport) -> str:
    """Time of the peak, and its rank if ranks differ."""
    phase, of_rank = moment(report.device), ""
    if report.roles:
        of_rank = f", rank {report.rank}"
    elif report.ranks:
        fullest = max(report.ranks, key=lambda one: one.device_peak_bytes)
        of_rank = f", rank {fullest.rank}"
        if fullest.rank != report.rank:
            phase = phase_words(fullest.peak_phase)
    return f"{phase}{of_rank}"


def moment(device: DeviceMemory) -> str:
    """The phase of the peak, with the step that it is in."""
    phase = phase_words(device.peak_phase)
    return phase if device.peak_phase in ("init", "evaluation") else f"{phase} of step {device.peak_step + 1}"


def heading(report: RehearsalReport) -> str:
    """What was rehearsed, on which GPUs, and how long that took."""
    devices = quantity(report.world_size, "GPU")
    if report.world_size > report.gpus_per_node:
        devices += f", {report.gpus_per_node} per node"
    if (card := report.run.gpu) is not None:
        known = gpu_of_torch(card)  # its catalogue name distinguishes H100-SXM and H100-PCIe
        devices += f" ({card})" if known is None else f" ({known.name}, {card})"
    steps = quantity(report.steps, "optimizer step")
    ended = "" if report.run.stopped_after_steps is not None else ", then the script ended by itself"
    *others, last = [str(rank) for rank in sorted(report.ranks_rehearsed) or [report.rank]]
    alike = "" if report.ranks else ", which are alike"
    ranks = f"ranks {', '.join(others)} and {last}{alike}" if others else f"rank {last}"
    return (
        f"{report.run.script} on {devices}: {ranks}, {steps} rehearsed in "
        f"{format_seconds(report.elapsed_seconds)}{ended}"
    )


def _memory(report: RehearsalReport) -> Part:
    device, host = report.device, report.host
    ranks = quantity(report.gpus_per_node, "rank")
    rows: list[Cells] = [("GPU, allocated", device.peak_bytes, device.steady_bytes, f"in {moment(device)}")]
    for segments, figures in device.allocator.items():
        lost = f"{format_bytes(figures.fragmentation_bytes)} unused"
        name = f"GPU, reserved, {segments}"
        rows.append((name, figures.reserved_peak_bytes, figures.reserved_bytes, lost))
    rows += [
        ("Host, one rank", host.peak_bytes, host.steady_bytes, "tensors only"),
        ("  of it pinned", host.pinned_bytes, host.pinned_steady_bytes, ""),
        ("Host, one node", host.per_node_peak_bytes, host.per_node_steady_bytes, ranks),
    ]
    if report.nvme is not None:
        rows.append(("NVMe, one node", report.nvme.per_node_bytes, report.nvme.per_node_bytes, ranks))
    of_rank = f" of rank {report.rank}, which needs most" if report.roles else ""
    return table(f"Memory{of_rank}", ["", "Peak", "After the last step", ""], rows)


def _ranks(report: RehearsalReport) -> Iterator[Part]:
    if report.roles:
        columns = ["Role", "Ranks", "Rehearsed", "GPU peak", "in", "GPU steady"]
        rows: list[Cells] = []
        for role in report.roles:
            device = role.device
            held = (device.peak_bytes, phase_words(device.peak_phase), device.steady_bytes)
            rows.append((role.role, _spans(role.ranks), str(role.rehearsed), *held))
        yield table("Roles", columns, rows)
    elif report.ranks:
        columns = ["Rank", "GPU peak", "GPU reserved", "GPU steady", "Host peak", "Host pinned"]
        rows = []
        for rank in report.ranks:
            on_gpu = (rank.device_peak_bytes, rank.reserved_peak_bytes, rank.device_steady_bytes)
            rows.append((str(rank.rank), *on_gpu, rank.host_peak_bytes, rank.pinned_bytes))
        yield table("Ranks differ", columns, rows)


def _spans(ranks: list[int]) -> str:
    """Ranks as "0, 2 to 5"."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    shown = [" to ".join(map(str, span)) for span in spans[:_MOST_LINES]]
    return ", ".join(shown) + (" ..." if len(spans) > _MOST_LINES else "")


def _needed(fit: Fit, device: DeviceMemory) -> Iterator[Part]:
    allocated = fit.low_bytes - sum(line.low_bytes for line in fit.overheads)
    reserved = fit.high_bytes - sum(line.high_bytes for line in fit.overheads)
    yield f"Needed of a GPU: {format_span(fit.low_bytes, fit.high_bytes)}"
    more = ", or more: --time shows when blocks that streams share are free" if device.reserved_is_lower_bound else ""
    yield f"  allocated to reserved: {format_span(allocated, reserved)}{more}"
    for line in fit.overheads:
        yield f"  {line.name}, an estimate: {format_span(line.low_bytes, line.high_bytes)}; {line.source}"


def _batches(batches: Batches) -> Iterator[str]:
    line = f"Batches: up to {batches.first} in the first steps"
    for one in batches.rehearsed:
        line += f"; {one} in step {one.first_step}"
    yield line
    of = "an unknown number of" if batches.of is None else f"{batches.of:,}"
    looked = f"looked through {batches.scanned:,} of {of} batches of the data"
    if batches.problem:
        yield f"Warning: {looked}, then it failed ({batches.problem}): there may be longer ones"
    elif batches.scanned and not batches.is_whole:
        seconds = format_seconds(batches.seconds)
        yield f"Warning: {looked} in {seconds}: there may be longer ones (--scan gives it more time)"
    elif batches.scanned:
        yield f"  the largest of {batches.scanned:,} in an epoch: {batches.largest}"
    if batches.longest_tokens > batches.rehearsed_tokens:
        yield (
            f"Warning: a batch of {batches.largest} was not rehearsed: the script ended before. Let it train "
            "for more steps"
        )


def _steps(report: RehearsalReport) -> Iterator[Part]:
    peaks = [step.peak_bytes for step in report.per_step]
    steadies = [step.steady_bytes for step in report.per_step]
    if len(peaks) < 2:
        return
    tolerance = _STEPS_DIFFER * max(peaks)
    if max(peaks) - min(peaks) > tolerance or max(steadies) - min(steadies) > tolerance:
        rows = [
            (str(step.step), step.peak_bytes, phase_words(step.peak_phase), step.steady_bytes)
            for step in report.per_step[:_MOST_LINES]
        ]
        yield table("Steps differ", ["Step", "GPU peak", "in", "At its end"], rows)


def category_rows(report: RehearsalReport) -> list[tuple[str, ...]]:
    """Name, bytes and share of each category at the peak, the largest first."""
    peak = report.device.peak_bytes
    held = sorted(report.device.at_peak.items(), key=lambda entry: -entry[1])
    return [(category_words(name), format_bytes(size), f"{size / peak:.1%}") for name, size in held if size]


def _host_categories(report: RehearsalReport) -> Part:
    host = report.host
    held = sorted(host.at_peak.items(), key=lambda entry: -entry[1])
    rows = [(category_words(name), size, host.pinned_at_peak.get(name, 0)) for name, size in held if size]
    title = "At the peak of the host, one rank, by category"
    return table(title, ["Category", "Bytes", "Of it pinned"], rows)


def _sites(report: RehearsalReport) -> Part:
    peak = report.device.peak_bytes
    rows = [
        (_line(site.site), site.bytes, f"{site.bytes / peak:.1%}", f"{site.blocks:,}")
        for site in report.device.sites_at_peak[:_MOST_LINES]
    ]
    return table("At the peak, by line of code", ["Line", "Bytes", "Share", "Blocks"], rows)


def _blocks(report: RehearsalReport) -> Part:
    alike: dict[tuple[str, ...], list[str]] = {}
    for block in report.device.largest_blocks_at_peak:
        what = block.name or _line(block.site) or block.op or "unknown"
        row = (format_bytes(block.bytes), category_words(block.category), _tensor(block))
        alike.setdefault((*row, _LAYER.sub(".*", what)), []).append(what)
    rows = []
    for (size, *others, what), names in alike.items():
        count = f"{len(names)} x " if len(names) > 1 else ""
        rows.append((f"{count}{size}", *others, what if len(set(names)) > 1 else names[0]))
    blocks = quantity(sum(map(len, alike.values())), "largest block")
    return table(f"At the peak, the {blocks}", ["Bytes", "Category", "Tensor", "What"], rows)


def _line(site: str | None) -> str:
    """``path/file.py:12 in Class.method`` as ``Class.method (file.py:12)``, which fits a terminal."""
    path, inside, function = (site or "").partition(" in ")
    return f"{function} ({path.rpartition('/')[2]})" if inside else path


def _tensor(block: BlockMemory) -> str:
    shape = "x".join(str(size) for size in block.shape)
    return f"{block.dtype} {shape}".strip() if block.shape or block.dtype != "unknown" else ""


def _communication(report: RehearsalReport) -> Iterator[Part]:
    rows = [
        (call.collective, phase_words(call.phase), str(call.group_size), f"{call.count:,}", call.bytes)
        for call in report.communication
    ]
    if rows:
        columns = ["Collective", "Phase", "GPUs", "Calls", "Bytes"]
        yield table("Communication of one rank: at the start and in its last step", columns, rows)
    if report.flops_per_step:
        yield f"Floating-point operations of one rank in its last step: {format_count(report.flops_per_step)}"


def _advice(report: RehearsalReport) -> Iterator[Part]:
    if report.advice:
        yield ""
        times = ["Step; a token"] if report.time is not None else []
        rows: list[Cells] = []
        for one in report.advice:
            held = (one.saves_bytes, one.peak_bytes, one.host_bytes)
            rows.append((one.change, *held, one.verdict, *(faster(one) for _ in times), one.how))
        columns = ["Change", "Saves", "Peak", "Host, one node", "", *times, "How"]
        yield table("What would help, each rehearsed", columns, rows)
    if report.interrupted:
        yield "Interrupted: other changes were not rehearsed"
    for failed in report.not_rehearsed:
        yield f"Could not be rehearsed: {failed.change}: {failed.why}"


def _notes(report: RehearsalReport) -> Iterator[str]:
    further = _further(report)
    if further or report.ds_config_findings or report.made_up or report.suppressed:
        yield ""
    for warning in further:
        yield f"Warning: {warning}"
    for found in report.ds_config_findings:
        yield str(found)
    for case in report.made_up:
        yield f"Made up, as there are no values: {case.what}, {case.count:,} times at {case.site}"
    for what in report.suppressed:
        yield f"Not written: {what}"


def _files(files: FileChanges) -> Iterator[str]:
    if not files.guarded:
        yield "Warning: this machine has no seccomp filters: changes of files were made, not held back"
    elif files.written or files.deleted:
        yield "Your files are as they were. The script would have"
    if files.written:
        yield f"  written {quantity(files.written, 'file')} ({format_bytes(files.written_bytes)}):"
        yield from _first(files.first_written, files.written)
    if files.deleted:
        yield f"  deleted {quantity(files.deleted, 'file')}:"
        yield from _first(files.first_deleted, files.deleted)
    if files.not_kept_bytes:
        what = format_bytes(files.not_kept_bytes)
        yield f"Warning: {what} of what it wrote was not kept, to leave room on the disk, and reads as zeros"
    for path in files.opened_read_only:
        yield f"Warning: {path} was opened for reading alone: there is no room for a copy to write into"


def _first(paths: list[str], count: int) -> Iterator[str]:
    shown = paths[:_MOST_PATHS]
    yield from (f"    {path}" for path in shown)
    if count > len(shown):
        yield f"    and {count - len(shown):,} more"


def time_parts(time: TimeReport, *, of_several: bool) -> Iterator[Part]:
    """How long a step takes, and what it takes; `of_several`: whether other ranks were rehearsed, too."""
    whose = f" of rank {time.rank}" if of_several else ""
    facts = [f"step {time.step}{whose} {_takes(time)}"]
    if time.tokens_per_second is not None:
        facts.append(f"{time.tokens_per_second:,.0f} tokens/s on all GPUs with this step's batch")
    if time.mfu is not None and time.hfu is not None:
        facts.append(f"MFU {time.mfu:.1%}, HFU {time.hfu:.1%}")
    yield f"Time: {'; '.join(facts)}"
    yield f"  {range_line(time.run_class, time.narrower_with)}"
    if time.tokens_per_second is not None:
        yield "  Batches of other lengths have other tokens/s: a run's are those of its data's mix of lengths"
    yield ""
    title = "Time by activity (overlaps count once, in this order)"
    yield table(title, ["", "Time", "Share"], breakdown_rows(time))
    yield from _data(time)
    rows = [(one.name, f"{one.count:,}", milliseconds(one.seconds)) for one in time.kernels]
    yield table("Longest kernels, also overlapped ones", ["Kernel", "Calls", "Time"], rows)
    path = [
        (one.name, f"{one.count:,}", milliseconds(one.seconds), f"{one.seconds / time.step_seconds:.1%}")
        for one in time.critical_path[:_MOST_PATHS]
    ]
    yield table("Critical path", ["", "Times", "Time", "Share"], path)


def _takes(time: TimeReport) -> str:
    low, high = milliseconds(time.low_seconds), milliseconds(time.high_seconds)
    return f"takes {milliseconds(time.step_seconds)} ({low} to {high})"


def breakdown_rows(time: TimeReport) -> list[tuple[str, ...]]:
    """Name, time and share of each part of the step that took any."""
    parts = {TIME_PARTS[name][0]: seconds for name, seconds in time.breakdown.model_dump().items() if seconds}
    return [(name, milliseconds(seconds), f"{seconds / time.step_seconds:.1%}") for name, seconds in parts.items()]


def _data(time: TimeReport) -> Iterator[str]:
    data = time.data
    if data is None:
        return
    own = quantity(data.workers, "worker") if data.workers else "none, so that the script reads between steps"
    yield (
        f"Reading a batch takes {milliseconds(data.batch_seconds)} on this machine, not in the step's time: "
        f"{quantity(data.workers_needed, 'worker')} would hide it behind a step, and the loader has {own}"
    )
    yield ""


def milliseconds(seconds: float) -> str:
    """``"12.3 ms"``."""
    return f"{1000 * seconds:,.1f} ms"


def faster(advice: Advice) -> str:
    """What a change makes of a step."""
    if advice.step_seconds is None or advice.faster is None:
        return ""
    words = "less time" if advice.faster >= 0 else "more time"
    return f"{milliseconds(advice.step_seconds)}; {abs(advice.faster):.0%} {words}"

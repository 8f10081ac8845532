"""The times of a rehearsal for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zerokit.rehearsal.report.report import Advice, TimeReport
from zerokit.reporting.tables import table
from zerokit.units import quantity

if TYPE_CHECKING:
    from zerokit.reporting.terminal import Part

_MOST_LINKS = 5
_PARTS = {
    "compute": "Kernels",
    "host_optimizer": "Optimizer on the host",
    "host_operators": "Operators on tensors of the host",
    "communication": "Communication",
    "copies": "Copies from and to host and drives",
    "data": "Waiting for data",
    "other_ranks": "Waiting for other ranks",
    "launch": "Waiting for the host to launch",
}


def time_parts(time: TimeReport, *, of_several: bool) -> Iterator[Part]:
    """How long a step takes, and what it takes.

    Args:
        time: to be told.
        of_several: whether other ranks were rehearsed, too.
    """
    whose = f" of rank {time.rank}" if of_several else ""
    facts = [f"step {time.step}{whose} {_takes(time)}"]
    if time.tokens_per_second is not None:
        facts.append(f"{time.tokens_per_second:,.0f} tokens/s on all GPUs with this step's batch")
    if time.mfu is not None and time.hfu is not None:
        facts.append(f"MFU {time.mfu:.1%}, HFU {time.hfu:.1%}")
    yield f"Time: {'; '.join(facts)}"
    if time.tokens_per_second is not None:
        yield "  Batches of other lengths have other tokens/s: a run's are those of its data's mix of lengths"
    yield ""
    title = "Where a step's time goes: each moment counts for the first of these that goes on then"
    yield table(title, ["", "Time", "Share"], breakdown_rows(time))
    yield from _data(time)
    yield table(
        "What takes most of it, whatever goes on beside",
        ["Kernel", "Calls", "Time"],
        [(one.name, f"{one.count:,}", _milliseconds(one.seconds)) for one in time.kernels],
    )
    yield table(
        "What a step waits for, one after the other (its critical path)",
        ["", "Times", "Time", "Share"],
        [
            (one.name, f"{one.count:,}", _milliseconds(one.seconds), f"{one.seconds / time.step_seconds:.1%}")
            for one in time.critical_path[:_MOST_LINKS]
        ],
    )


def last_line(time: TimeReport) -> str:
    """What follows the verdict where it is said again, below a long report."""
    return f"a step {_takes(time)}"


def _takes(time: TimeReport) -> str:
    low, high = _milliseconds(time.low_seconds), _milliseconds(time.high_seconds)
    return f"takes {_milliseconds(time.step_seconds)} ({low} to {high})"


def breakdown_rows(time: TimeReport) -> list[tuple[str, ...]]:
    """Name, time and share of each part of the step that took any."""
    parts = {_PARTS[name]: seconds for name, seconds in time.breakdown.model_dump().items() if seconds}
    return [
        (name, _milliseconds(seconds), f"{seconds / time.step_seconds:.1%}")
        for name, seconds in parts.items()
    ]


def _data(time: TimeReport) -> Iterator[str]:
    data = time.data
    if data is None:
        return
    if not data.is_in_step:
        where = "not in the step's time (--with-data-time)"
    elif time.breakdown.data:
        where = f"of which the step waits for {_milliseconds(time.breakdown.data)}"
    else:
        where = "of which the step waits for nothing"
    own = quantity(data.workers, "worker") if data.workers else "none, so that the script reads between steps"
    yield (
        f"Reading a batch takes {_milliseconds(data.batch_seconds)} on this machine, {where}: "
        f"{quantity(data.workers_needed, 'worker')} would hide it behind a step, and the loader has {own}"
    )
    yield ""


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def faster(advice: Advice) -> str:
    """What a change makes of a step."""
    if advice.step_seconds is None or advice.faster is None:
        return ""
    words = "less time" if advice.faster >= 0 else "more time"
    return f"{_milliseconds(advice.step_seconds)}; {abs(advice.faster):.0%} {words}"

"""Writes traces in Chrome's trace format for https://ui.perfetto.dev.

Times are microseconds since the trace began. There is one process; its rows are threads. Format: "Trace Event
Format" (Google).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from zerokit.files import new_file

Entry = dict[str, Any]

_PROCESS = 0


def write_trace(path: str | Path, entries: Iterable[Entry]) -> None:
    """Write entries as they come; compressed if the name ends in ``.gz``.

    Raises:
        ZerokitError: the file cannot be written.
    """
    packed = Path(path).suffix == ".gz"
    with (
        new_file(path, follow_links=True) as raw,
        gzip.GzipFile("", "wb", fileobj=raw) if packed else nullcontext(raw) as file,
    ):
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, entry in enumerate(entries):
            file.write(((",\n" if number else "") + json.dumps(entry, separators=(",", ":"))).encode())
        file.write(b"\n]}\n")


def process_name(name: str) -> Entry:
    """Title above all rows."""
    return _entry("M", "process_name", 0, args={"name": name})


def thread_name(thread: int, name: str) -> Entry:
    """Title of a row."""
    return _entry("M", "thread_name", thread, args={"name": name})


def duration_event(thread: int, name: str, begin: float, end: float) -> Entry:
    """A bar in a row."""
    return _entry("X", name, thread, ts=round(float(begin), 3), dur=round(float(end - begin), 3))


def instant_event(thread: int, name: str, at: float, facts: Entry) -> Entry:
    """A mark in a row, with facts that a click shows."""
    return _entry("i", name, thread, s="t", ts=round(float(at), 3), args=facts)


def counter(name: str, at: float, values: dict[str, int]) -> Entry:
    """A point of a stacked curve in its own row."""
    return {"ph": "C", "name": name, "pid": _PROCESS, "ts": round(float(at), 3), "args": values}


def _entry(kind: str, name: str, thread: int, **rest: Any) -> Entry:
    return {"ph": kind, "name": name, "pid": _PROCESS, "tid": thread, **rest}

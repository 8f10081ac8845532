"""The recording as a memory snapshot of PyTorch, for the viewer at https://pytorch.org/memory_viz.

The format is that of ``torch.cuda.memory._snapshot()`` (torch/csrc/cuda/Module.cpp,
THCPModule_memorySnapshot), as torch/cuda/_memory_viz.py and torch/utils/viz/MemoryViz.js read it.
"""

from __future__ import annotations

import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from zerokit.files import new_file
from zerokit.rehearsal.recording import CATEGORY_CODES, Array, Recording, Space

_PROTOCOL = 4
"""MemoryViz.js has an unpickler of its own, which knows the protocols 2 to 4."""
_UNKNOWN = "unknown"
"""The viewer's name for no category. It fails if categories are given and this one is not among them."""
_SITE = re.compile(r"(?P<filename>.*):(?P<line>\d+)(?: in (?P<name>.*))?")

Entry = dict[str, Any]


def write_snapshot(recording: Recording, path: str | Path) -> None:
    """Write the device's memory to `path` as a pickle of lists and dicts.

    A segment is a stretch of addresses that blocks of one stream used, and is there from the start.
    """
    with new_file(path, follow_links=True) as file:
        pickle.dump(snapshot(recording), file, protocol=_PROTOCOL)


def snapshot(recording: Recording) -> Entry:
    """What :func:`write_snapshot` pickles."""
    events = recording.events[recording.events["space"] == Space.DEVICE]
    blocks = _Blocks(recording)
    segments, trace = _segments(recording, events, blocks), _trace(events, blocks)
    others: Entry = {"allocator_settings": {}, "external_annotations": []}
    return {"segments": segments, "device_traces": [trace], **others}


class _Blocks:
    """The blocks, as the snapshot describes them."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.frames = cache(self._frames)
        self.category = [_UNKNOWN, *CATEGORY_CODES[1:]]
        self.categories = recording.blocks["category"].tolist()
        self.sites = recording.blocks["site"].tolist()
        self.requested = recording.blocks["bytes"].tolist()

    def _frames(self, site: int) -> list[Entry]:
        if not 0 <= site < len(self._recording.sites):
            return []
        text = self._recording.sites[site]
        match = _SITE.fullmatch(text)
        if match is None:
            return [{"name": text, "filename": "", "line": 0}]
        return [{"name": match["name"] or "", "filename": match["filename"], "line": int(match["line"])}]

    def label(self, number: int) -> str:
        """A line for the viewer: ``"activations, bfloat16 2x4096x4096, aten::mm, from forward"``."""
        block = self._recording.block(number, self.requested[number])
        shape = "x".join(map(str, block.shape))
        tensor = f"{block.dtype} {shape}".strip() if block.dtype != "unknown" else None
        parts = (block.category, tensor, block.name, block.op, f"from {block.phase}")
        return ", ".join(filter(None, parts))


def _trace(events: Array, blocks: _Blocks) -> list[Entry]:
    trace: list[Entry] = [
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 0, "frames": [],
         "category": _UNKNOWN}
    ]  # fmt: skip
    columns = (events[name].tolist() for name in ("time_ns", "block", "bytes", "address", "stream"))
    for time_ns, block, size, address, stream in zip(*columns, strict=True):
        entry = {
            "addr": address,
            "size": abs(size),
            "stream": stream,
            "time_us": time_ns // 1000,
            "frames": blocks.frames(blocks.sites[block]),
            "category": blocks.category[blocks.categories[block]],
        }
        if size > 0:
            trace.append({"action": "alloc", **entry, "user_metadata": blocks.label(block)})
        else:
            trace.append({"action": "free_requested", **entry})
            trace.append({"action": "free_completed", **entry})
    return trace


def _segments(recording: Recording, events: Array, blocks: _Blocks) -> list[Entry]:
    alive = recording.alive(len(recording.events) - 1, Space.DEVICE)
    segments = []
    for begin, end, stream in _stretches(events[events["bytes"] > 0]):
        inside = alive[(alive["address"] >= begin) & (alive["address"] < end)]
        columns = (inside[name].tolist() for name in ("address", "bytes", "block"))
        segments.append(
            {
                "device": 0,
                "address": begin,
                "total_size": end - begin,
                "allocated_size": int(inside["bytes"].sum()),
                "stream": stream,
                "frames": [],
                "blocks": [
                    {
                        "address": address,
                        "size": size,
                        "requested_size": min(blocks.requested[block] or size, size),
                        "state": "active_allocated",
                        "frames": blocks.frames(blocks.sites[block]),
                    }
                    for address, size, block in zip(*columns, strict=True)
                ],
            }
        )
    return segments


def _stretches(allocations: Array) -> list[tuple[int, int, int]]:
    """Runs of touching addresses of one stream: first address, the address after the last, stream."""
    order = np.argsort(allocations["address"], kind="stable")
    stretches: list[tuple[int, int, int]] = []
    columns = (allocations[name][order].tolist() for name in ("address", "bytes", "stream"))
    for address, size, stream in zip(*columns, strict=True):
        if stretches:
            begin, end, owner = stretches[-1]
            if address < end or (address == end and stream == owner):
                stretches[-1] = (begin, max(end, address + size), owner)
                continue
        stretches.append((address, address + size, stream))
    return stretches

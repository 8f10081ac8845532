"""What a rehearsal records of one rank: every allocation and release, and what happened around them.

The native library fills the arrays. A recording saves to one ``.npz`` file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from zerokit.errors import DocumentError
from zerokit.files import new_file
from zerokit.rehearsal.report.report import Batches, BlockMemory, DataTime, Evaluation, MadeUpResult, Part, ScriptFacts
from zerokit.reporting.categories import Category
from zerokit.reporting.phases import RUN_PHASES
from zerokit.tables import table_of

_TABLE = table_of(__file__)


def _layout(name: str, *, align: bool = False) -> np.dtype[Any]:
    """The dtype of an array of records, by the names, types and shapes of its fields."""
    fields = [(field, kind, *map(tuple, shape)) for field, kind, *shape in _TABLE[name]]
    return np.dtype(fields, align=align)


EVENT = _layout("event")
"""One allocation (``bytes`` > 0) or release (< 0). ``time_ns`` is virtual time of the host, or CPU time of
the rehearsal where only memory is rehearsed. ``step`` counts the optimizer steps completed before."""
BLOCK = _layout("block")
"""What an allocation was for. ``site``, ``op`` and ``name`` are places in the recording's tables, or -1."""
SPAN = _layout("span", align=True)
"""What a stream, or the host (stream -1), did in virtual time, ns. ``name`` is a place in the recording's
``ops``, ``kind`` a `WorkKind`; ``step`` and ``phase`` are those in which it was submitted."""
CATEGORY_CODES: tuple[Category, ...] = (
    *("other", "parameters", "gradients", "optimizer_states", "activations", "buffers"),
)
"""The code of a category is its place here, that of a phase its place in :data:`RUN_PHASES`."""
DTYPES: Sequence[str] = _TABLE["dtypes"]
"""PyTorch's number formats in the order of ``c10::ScalarType`` (torch/headeronly/core/ScalarType.h)."""
Array = npt.NDArray[Any]


class Space(IntEnum):
    """The memory that a block is in."""

    DEVICE = 0
    PAGEABLE_HOST = 1
    PINNED_HOST = 2


HOST_SPACES = (Space.PAGEABLE_HOST, Space.PINNED_HOST)


class StepMark(NamedTuple):
    """The end of an optimizer step."""

    event: int
    """How many events had been recorded by then."""
    step: int
    """How many optimizer steps were then completed."""


class Collective(NamedTuple):
    """One call of a collective by this rank."""

    name: str
    phase: int
    step: int
    """How many optimizer steps were completed before the call."""
    bytes: int
    group_size: int
    event: int
    """How many events had been recorded by then."""
    is_of_rows: bool = False
    """Whether one of its tensors has several rows of several elements, as activations and weights have."""


class NvmeBytes(Part):
    """Files of DeepSpeed's NVMe offload, and what was moved to and from them."""

    held: int
    written: int
    read: int


class RankTimes(Part):
    """The virtual time of a rank, nanoseconds since its start."""

    step_ends: list[int]
    """When each step was done. A worker saves the times of its rank alone, which are provisional: if several
    ranks were rehearsed, `timing/play_together` replaces them."""
    step_end_events: list[list[int]] = Field(default_factory=list)
    """The events of the clock at each step's end; the last of them to happen ends the step."""
    meetings: list[tuple[str, ...]] = Field(default_factory=list)
    """The collectives that other ranks take part in, in this rank's order."""
    meetings_by_network: dict[int, list[int]] = Field(default_factory=dict)
    """Nanoseconds of each of them, by Gbit/s of a network between nodes that is not known."""
    model_flops: list[float]
    """Floating-point operations that each step needs, without recomputed ones."""
    tokens_per_step: list[int | None] = Field(default_factory=list)
    """Of all data-parallel ranks, padding included; None where batches are not of tokens."""
    reading: DataTime | None = None
    host_threads: int | None = None
    """Threads of this rank for CPU work; None: as many as the machine has cores."""


class RankFacts(ScriptFacts):
    """What one rank reports of its run."""

    rank: int = 0
    hint: str | None = None
    """What to do about the error that ended the script, if that is known."""
    elapsed_seconds: float = 0.0
    data_parallel_ranks: int | None = None
    """By which DeepSpeed multiplied its batch sizes; None without a ds_config."""
    requested_steps: int | None = None
    """Optimizer steps after which the run ends; None: the script ends by itself."""
    expandable_segments: bool = False
    """Whether PYTORCH_CUDA_ALLOC_CONF asks for them."""
    reserved_is_lower_bound: bool = False
    """As of :class:`zerokit.rehearsal.report.report.DeviceMemory`."""
    suppressed: list[str] = Field(default_factory=list)
    """Checkpoints, trackers and uploads that were not written."""
    mistakes: list[str] = Field(default_factory=list)
    """Mistakes of the script, by which it trains otherwise than it seems to."""
    fp32_share: float = 0.0
    """Of the floating-point operations of backward passes, which frozen models have none of."""
    chooses_fp32: bool = False
    """Whether the ds_config, as written, turns 16 bits off, or the script turns TF32 on."""
    made_up: list[MadeUpResult] = Field(default_factory=list)
    gaps: list[str] = Field(default_factory=list)
    """Operations without a stand-in, including those that the script went on without."""
    nvme: NvmeBytes | None = None
    batches: Batches | None = None
    evaluation: Evaluation | None = None
    times: RankTimes | None = None
    """None if only memory was rehearsed."""


@dataclass(frozen=True)
class Recording:
    """One rehearsed rank. ValueError if the arrays contradict each other, which is a fault of the recorder."""

    events: Array
    blocks: Array
    sites: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    step_marks: tuple[StepMark, ...] = ()
    collectives: tuple[Collective, ...] = ()
    flops: tuple[int, ...] = ()
    """Floating-point operations of each optimizer step."""
    spans: Array = field(default_factory=lambda: np.zeros(0, SPAN))
    allocator: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Figures of the modelled caching allocator, under ``ordinary`` and ``expandable``."""
    warnings: tuple[str, ...] = ()
    acts: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """What the host did, to be played together with other ranks (`native/together.py`)."""
    facts: RankFacts = field(default_factory=RankFacts)

    def __post_init__(self) -> None:
        # Recordings may be made of plain lists of plain tuples, as those of files.
        rows = {"step_marks": StepMark, "collectives": Collective}
        for name in ("sites", "ops", "names", "flops", "warnings"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, kind in rows.items():
            object.__setattr__(self, name, tuple(kind(*row) for row in getattr(self, name)))
        self._check()

    def running_bytes(self, *spaces: Space, category: int | None = None) -> npt.NDArray[np.int64]:
        """Bytes held in `spaces` after each event; `category`: of this place in :data:`CATEGORY_CODES`."""
        changes = np.where(np.isin(self.events["space"], spaces), self.events["bytes"], 0)
        if category is not None:
            categories = self.blocks["category"][self.events["block"]]
            changes = np.where(categories == category, changes, 0)
        return np.cumsum(changes, dtype=np.int64)

    @property
    def last_mark(self) -> StepMark | None:
        """The end of the last requested step: what follows rehearses the largest batches."""
        requested = self.facts.requested_steps or len(self.step_marks)
        return self.step_marks[:requested][-1] if self.step_marks else None

    @property
    def completed_steps(self) -> int:
        """Optimizer steps completed, those for the largest batches included."""
        return max((mark.step for mark in self.step_marks), default=0)

    def alive(self, event: int, *spaces: Space) -> Array:
        """The allocations in `spaces` not yet released after event number `event`, as events."""
        before = self.events[: event + 1]
        before = before[np.isin(before["space"], spaces)]
        released = before["block"][before["bytes"] < 0]
        allocations = before[before["bytes"] > 0]
        alive: Array = allocations[~np.isin(allocations["block"], released)]
        return alive

    def block(self, number: int, size: int) -> BlockMemory:
        """What block `number` was for, of which `size` bytes were allocated."""
        row = self.blocks[number]
        return BlockMemory(
            bytes=size,
            shape=row["shape"][: min(int(row["ndim"]), 6)].tolist(),
            dtype=_text(DTYPES, row["dtype"]) or "unknown",
            name=_text(self.names, row["name"]),
            site=_text(self.sites, row["site"]),
            op=_text(self.ops, row["op"]),
            category=CATEGORY_CODES[row["category"]],
            phase=RUN_PHASES[row["phase"]],
        )

    def save(self, path: str | Path) -> None:
        """Write the recording to `path` as ``.npz``."""
        arrays: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        rest = {name: value for name, value in vars(self).items() if name not in arrays}
        rest |= {"allocator": dict(self.allocator), "facts": json.loads(self.facts.model_dump_json())}
        with new_file(path) as file:
            np.savez(file, rest=np.frombuffer(json.dumps(rest).encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what :meth:`save` wrote. DocumentError if the file is absent or not a recording."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                rest = json.loads(arrays["rest"].tobytes())
                rest["facts"] = RankFacts.model_validate(rest["facts"])
                return cls(**{name: arrays[name] for name in arrays.files if name != "rest"}, **rest)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            raise DocumentError(
                "is not a recording of a rehearsal", where=path, hint="Name a file that the rehearsal wrote"
            ) from None

    def _check(self) -> None:
        if self.events.dtype != EVENT or self.blocks.dtype != BLOCK:
            raise ValueError("a recording's arrays have the wrong fields")
        blocks = self.events["block"]
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < len(self.blocks):
            raise ValueError("an event names a block that was not recorded")
        too_high = self.blocks["category"] >= len(CATEGORY_CODES)
        if (self.events["phase"] >= len(RUN_PHASES)).any() or too_high.any():
            raise ValueError("a phase or a category has no name")
        for space in Space:
            if (self.running_bytes(space) < 0).any():
                raise ValueError(f"more was released in {space.name} than had been allocated")


def _text(table: Sequence[str], place: int) -> str | None:
    return table[place] if 0 <= place < len(table) else None


def peak_event(running: Array) -> int:
    """The number of the event that first reaches the largest of `running` bytes; -1 without events."""
    return int(running.argmax()) if len(running) else -1

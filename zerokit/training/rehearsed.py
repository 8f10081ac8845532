"""What a rehearsal said of a run, to stand beside what the run then takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from zerokit.documents import read_bytes
from zerokit.errors import DocumentError, LaunchError

OPTION = "--rehearsed"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Rehearsed:
    """Of the rank that needs most."""

    peak_bytes: int
    """Of tensors on its device, as ``torch.cuda.max_memory_allocated`` counts."""
    step_seconds: float | None
    """None if it was rehearsed without ``--time``."""
    low_seconds: float | None
    high_seconds: float | None


class _Device(BaseModel):
    peak_bytes: int


class _Time(BaseModel):
    step_seconds: float
    low_seconds: float
    high_seconds: float


class _Rank(BaseModel):
    device_peak_bytes: int


class _Report(BaseModel):
    """What is looked at of a report of a rehearsal."""

    world_size: int
    device: _Device
    ranks: list[_Rank] = Field(default_factory=list)
    """Where they differ; `device` may be of another than the one that needs most."""
    time: _Time | None = None


def read_rehearsed(file: Path, world_size: int) -> Rehearsed:
    """Read what ``zerokit rehearse -o FILE`` has written.

    Raises:
        LaunchError: it is none, or of another number of ranks.
    """
    try:
        report = _Report.model_validate_json(read_bytes(file, max_bytes=_MOST_BYTES))
    except DocumentError as error:
        raise LaunchError(
            f"{file}: {error.message}", where=OPTION, hint="Name a report of 'zerokit rehearse -o FILE'"
        ) from error
    except ValidationError as error:
        raise LaunchError(
            f"{file} is no report of a rehearsal",
            where=OPTION,
            hint="Write it with 'zerokit rehearse -o FILE'",
        ) from error
    if report.world_size != world_size:
        raise LaunchError(
            f"{file} is of {report.world_size} ranks, and this run has {world_size}",
            where=OPTION,
            hint=f"Rehearse with --num-gpus {world_size}",
        )
    time = report.time
    seconds = (None,) * 3 if time is None else (time.step_seconds, time.low_seconds, time.high_seconds)
    peak = max([report.device.peak_bytes, *(rank.device_peak_bytes for rank in report.ranks)])
    return Rehearsed(peak, *seconds)

"""Compare the estimate with the rehearsal at every point of the grid, and print a table.

    python -m tests.validation.memory.against_rehearsal [--write] [--only TEXT] [--cache FOLDER] [--estimate]

A rehearsal takes 3 to 25 seconds. With --write, the table is recorded in results/estimate_grid.json,
with what it has of other points.
With --estimate, only estimates are made, and held against the rehearsals recorded there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.memory.grid import points
from tests.validation.memory.rehearsed import Point, rehearse
from zerokit.memory import estimate
from zerokit.units import format_bytes

RECORD = REPOSITORY / "tests" / "validation" / "results" / "estimate_grid.json"
_FIGURES = (("device", "peak"), ("device", "steady"), ("host", "peak"), ("host", "steady"))
_NAMES = (*(f"{where}_{when}" for where, when in _FIGURES), "nvme")
_NOTHING = 16 * 2**20
"""Host memory below this is Python's own tensors, not DeepSpeed's."""


@dataclass(frozen=True)
class Pair:
    """One figure, estimated and rehearsed, in bytes."""

    estimated: int
    rehearsed: int

    @property
    def error(self) -> float:
        """Relative; 0 where there is nothing to speak of on both sides."""
        if max(self.estimated, self.rehearsed) < _NOTHING:
            return 0.0
        return self.estimated / self.rehearsed - 1 if self.rehearsed else 1.0


@dataclass(frozen=True)
class Row:
    """One point."""

    name: str
    device_peak: Pair
    device_steady: Pair
    host_peak: Pair
    host_steady: Pair
    nvme: Pair
    phase_estimated: str
    phase_rehearsed: str

    @property
    def pairs(self) -> dict[str, Pair]:
        """The figures by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Pair)}

    @property
    def host_error(self) -> float:
        """The larger of the two, without sign."""
        return max(abs(self.host_peak.error), abs(self.host_steady.error))


def compare(point: Point, cache: Path | None = None, *, forked: bool = False) -> Row:
    """Estimate and rehearse `point`, both of them rank 0; the rest as of :func:`rehearse`."""
    report = rehearse(point, cache, forked=forked)
    nvme = report["nvme"] or {"per_rank_bytes": 0}
    figures = {f"{where}_{when}": report[where][f"{when}_bytes"] for where, when in _FIGURES}
    return _row(point, {**figures, "nvme": nvme["per_rank_bytes"]}, report["device"]["peak_phase"])


def compare_recorded(point: Point, recorded: dict[str, Any]) -> Row:
    """Estimate `point`, and hold it against its row in the record."""
    figures = {name: recorded[name]["rehearsed"] for name in _NAMES}
    return _row(point, figures, recorded["phase_rehearsed"])


def _row(point: Point, rehearsed: dict[str, int], phase: str) -> Row:
    told = estimate(replace(point.training_run(), rank=0))
    estimated = {f"{where}_{when}": getattr(getattr(told, where), f"{when}_bytes") for where, when in _FIGURES}
    estimated["nvme"] = told.nvme.per_rank_bytes
    pairs = {name: Pair(estimated[name], rehearsed[name]) for name in _NAMES}
    return Row(point.name, **pairs, phase_estimated=told.device.peak_phase, phase_rehearsed=phase)


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Errors over all rows, without sign."""
    peaks = [abs(row.device_peak.error) for row in rows]
    hosts = [row.host_error for row in rows]
    return {
        "points": len(rows),
        "device_peak_median": statistics.median(peaks),
        "device_peak_worst": max(peaks),
        "device_steady_worst": max(abs(row.device_steady.error) for row in rows),
        "host_median": statistics.median(hosts),
        "host_worst": max(hosts),
        "nvme_worst": max(abs(row.nvme.error) for row in rows),
        "same_phase": sum(row.phase_estimated == row.phase_rehearsed for row in rows) / len(rows),
    }


def record(rows: Sequence[Row], described: Sequence[Point]) -> dict[str, Any]:
    """What --write keeps."""
    by_name = {point.name: point for point in described}
    return {
        "what": "estimate against rehearsal (tests/validation/memory/against_rehearsal.py), bytes of rank 0",
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers", "peft")},
        "summary": summary(rows),
        "rows": [{"point": asdict(by_name[row.name]), **asdict(row)} for row in rows],
    }


def with_recorded(rows: Sequence[Row]) -> tuple[list[Row], list[Point]]:
    """`rows`, and of the other points of the grid what is recorded."""
    made = {row.name: row for row in rows}
    known = {row["name"]: row for row in json.loads(RECORD.read_text(encoding="utf-8"))["rows"]}
    every = points()
    missing = [point.name for point in every if point.name not in made | known]
    if missing:
        raise SystemExit(f"neither rehearsed nor recorded: {', '.join(missing)}")
    return [made.get(one.name) or compare_recorded(one, known[one.name]) for one in every], every


def print_rows(rows: Sequence[Row]) -> None:
    """One line a point, and the summary."""
    width = max(len(row.name) for row in rows)
    print(f"{'point':{width}} {'peak':>11} {'rehearsed':>11} {'error':>7} {'steady':>7} {'host':>6}  phase")
    for row in rows:
        same = row.phase_estimated == row.phase_rehearsed
        print(
            f"{row.name:{width}} {format_bytes(row.device_peak.estimated):>11} "
            f"{format_bytes(row.device_peak.rehearsed):>11} {row.device_peak.error:+7.1%} "
            f"{row.device_steady.error:+7.2%} {row.host_error:6.1%}  "
            f"{row.phase_estimated}{'' if same else f', not {row.phase_rehearsed}'}"
        )
    for name, value in summary(rows).items():
        print(f"{name}: {value if name == 'points' else f'{value:.2%}'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the table")
    parser.add_argument("--only", default="", help="points whose name has this text")
    parser.add_argument("--cache", type=Path, help="a folder that keeps rehearsals between calls")
    parser.add_argument("--estimate", action="store_true", help="rehearse nothing: take what is recorded")
    args = parser.parse_args()
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["rows"] if args.estimate else []
    known = {row["name"]: row for row in recorded}
    if args.cache is not None:
        args.cache.mkdir(parents=True, exist_ok=True)
    chosen = [point for point in points() if args.only in point.name]
    rows = []
    for number, point in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {point.name}", file=sys.stderr)
        rows.append(compare_recorded(point, known[point.name]) if args.estimate else compare(point, args.cache))
    print_rows(rows)
    if args.write:
        rows, chosen = with_recorded(rows)
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(record(rows, chosen), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Calibrates the range of a step's seconds, so that nine of ten real runs lie inside.

``python -m tests.validation.rehearsal.ranges`` prints coverage, width and score of the ranges by class of run, for
the rows of results/published_times.json: before (the range of the costs), after (the range that zerokit reports), and
after with each source left out of the calibration. ``--write`` also writes zerokit/hardware/costs/ranges.json, which
the product reads, results/ranges.json and records/ranges.md. Nothing is rehearsed.

How: the width of each end is the 95.5th percentile of what the rows of an engine need. All rows of one source together
count as the square root of their number. The rows of an engine are mixed with all rows, which count as
``shrinkage`` sources more, and those of each of its two finer classes with the engine's: steps that kernels decide,
and steps that the host, offload or an assumed network may decide, whose range is never narrower. The first table
compares other ways to do it: other powers, with which the width is combined with the range of the costs, and other
finer classes. The steps of results/whole_steps.json, on a machine
that was calibrated, are a class of their own; they are no part of any other figure.

The score is Winkler's, of logarithms: a range's width, and 20 times what a run lies beyond it. Less is better.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from tests.validation.rehearsal.published_times import WRITTEN as ROWS
from tests.validation.rehearsal.published_times import run_of
from zerokit.hardware.costs import ranges
from zerokit.hardware.costs.known import measured_on
from zerokit.hardware.costs.ranges import class_of, half_width
from zerokit.hardware.gpus import find_gpu

TABLE = Path(ranges.__file__).with_suffix(".json")
WRITTEN = ROWS.with_name("ranges.json")
PAGE = ROWS.parents[1] / "records" / "ranges.md"
NEWEST = 400
"""The first row of those that were looked for when the classes had been made."""
CALIBRATED = ROWS.with_name("whole_steps.json")

COVERAGE = 0.9
TAIL = 0.045
"""Share of runs beyond each end: less than half of a tenth, because more runs of a new source lie outside."""
End = Literal["low", "high"]
ENDS: tuple[End, ...] = get_args(End)
ENGINES = {"DeepSpeed": "DeepSpeed", "other": "without DeepSpeed"}
WORKS = {
    "kernels": "limited by GPU kernels",
    "network": "limited by GPU kernels or by a network whose speed is assumed",
    "host": "limited by the host's Python and launches",
    "offload": "limited by offload to the host",
}
MACHINES = {"": "", ", calibrated": ", on a calibrated machine"}
CLASSES = {
    f"{engine}, {work}{machine}": f"{ENGINES[engine]}, {WORKS[work]}{MACHINES[machine]}"
    for machine, engine, work in itertools.product(MACHINES, ENGINES, WORKS)
}
"""Names that :func:`class_of` gives, and their words."""


@dataclass(frozen=True, eq=False)
class Row:
    """A published run, and how it was predicted."""

    row: int
    source: str
    run_class: str
    """See :func:`class_of`."""
    off: float
    """The logarithm of measured / predicted."""
    costs: Mapping[End, float]
    """The logarithms of predicted / low and of high / predicted, by the costs alone."""
    is_same_program: bool = True
    """Whether the libraries that were rehearsed run the program that was measured. If not, the row is no part of
    the calibration, but counts where its range is judged."""
    splits: Mapping[str, bool] = field(default_factory=dict)
    """In what else it differs from others: classes that could be."""

    @property
    def engine(self) -> str:
        """DeepSpeed, or other."""
        return self.run_class.partition(",")[0]


@dataclass(frozen=True)
class Options:
    """How a table is made of rows."""

    power: float = 0.5
    """See :func:`zerokit.hardware.costs.ranges.half_width`."""
    split: str = "certainty"
    """Finer classes than engines: ``certainty`` (decided by kernels, or not), ``work``, or a name in `Row.splits`."""
    shrinkage: float = 1.0
    """Sources that all rows count as beside those of an engine, and those of an engine beside a finer class."""

    def finer(self, row: Row) -> object:
        """The finer class of a row."""
        return self.finer_of(row.run_class) if self.split in ("certainty", "work") else row.splits.get(self.split)

    def finer_of(self, run_class: str) -> object:
        """The finer class of a class."""
        work = run_class.split(", ")[1]
        return {"certainty": work == "kernels", "work": work}.get(self.split)


CHOSEN = Options()
Range = tuple[float, float]
"""The logarithms of both ends of a range, by the prediction."""


@dataclass(frozen=True)
class Table:
    """Widths by class, from published rows."""

    options: Options
    rows: Sequence[Row]
    calibrated: Sequence[Row] = ()
    """Steps on calibrated machines."""

    def range(self, row: Row) -> Range:
        """The range of a row."""
        widths = self.widths(row.engine, self.options.finer(row))
        low, high = (half_width(row.costs[end], widths[end], self.options.power) for end in ENDS)
        return -low, high

    def widths(self, engine: str, finer: object) -> dict[End, float]:
        """The widths of a class by its engine and :meth:`Options.finer`."""
        key = engine, finer
        if key not in self._known:
            of_engine = [row for row in self.rows if row.engine == engine]
            alike = [row for row in of_engine if self.options.split and self.options.finer(row) == finer]
            found = self._mixed(self.rows, of_engine, alike)
            if self.options.split == "certainty" and not finer:
                certain = self.widths(engine, True)
                found = {end: max(found[end], certain[end]) for end in ENDS}
            self._known[key] = found
        return self._known[key]

    def classes(self) -> dict[str, dict[End, float]]:
        """Widths by :data:`CLASSES`; on a calibrated machine never more than on others."""
        found = {}
        for name in CLASSES:
            engine, finer = name.partition(",")[0], self.options.finer_of(name)
            usual = found[name] = self.widths(engine, finer)
            own = [
                row
                for row in self.calibrated
                if row.engine == engine and self.options.finer_of(row.run_class) == finer
            ]
            if name.endswith("calibrated") and own:
                of_engine = [row for row in self.rows if row.engine == engine]
                alike = [row for row in of_engine if self.options.finer_of(row.run_class) == finer]
                mixed = self._mixed(self.rows, of_engine, alike, own)
                found[name] = {end: min(mixed[end], usual[end]) for end in ENDS}
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, object], dict[End, float]]:
        return {}

    def _mixed(self, *levels: Sequence[Row]) -> dict[End, float]:
        """The widths that the last of some groups of rows needs, mixed with those before it."""
        weights: dict[Row, float] = {}
        for level in levels:
            if rows := [row for row in level if row.is_same_program]:
                kept = self.options.shrinkage / (sum(weights.values()) or 1.0)
                weights = {row: weight * kept for row, weight in weights.items()}
                for row, weight in zip(rows, weights_of(rows), strict=True):
                    weights[row] = weights.get(row, 0.0) + weight
        return {
            end: max(0.0, round(_quantile(((self._need(row, end), of) for row, of in weights.items()), 1 - TAIL), 4))
            for end in ENDS
        }

    def _need(self, row: Row, end: End) -> float:
        off = row.off if end == "high" else -row.off
        return float(off / row.costs[end] ** self.options.power)


def weights_of(rows: Sequence[Row]) -> list[float]:
    """Of each row: those of one source are alike, and count as the square root of their number."""
    numbers = Counter(row.source for row in rows)
    return [numbers[row.source] ** -0.5 for row in rows]


def _quantile(values: Iterable[tuple[float, float]], share: float) -> float:
    """Of pairs of value and weight: the smallest value that so large a share does not exceed."""
    ordered = sorted(values)
    sums = itertools.accumulate(weight for _, weight in ordered)
    least = share * math.fsum(weight for _, weight in ordered) - 1e-9
    return next(value for (value, _), found in zip(ordered, sums, strict=True) if found >= least)


# ---- the rows


def published_rows() -> list[Row]:
    """All published rows that were rehearsed."""
    return [_published(one) for one in json.loads(ROWS.read_text(encoding="utf-8")) if "error" in one]


def _published(one: Mapping[str, Any]) -> Row:
    run = run_of(one["published"])
    assert run is not None
    machines, assumed = run.machines, one["assumed"]
    engine = "DeepSpeed" if run.plan.engine == "deepspeed" and not _OTHER_ENGINE & set(assumed) else "other"
    library, _, release = run.environment.partition(" ")
    several = machines.gpus > machines.gpus_per_node
    is_guessed = several and (machines.network_gbit_s is None or bool(_NETWORKS & set(assumed)))
    return Row(
        one["row"],
        source_of(one["published"]["source"]),
        class_of(
            one["shares"], run.plan.micro_batch * run.plan.length, deepspeed=engine == "DeepSpeed", guessed=is_guessed
        ),
        math.log(one["measured"] / one["predicted"]),
        _costs(one),
        not library or one["versions"][library].startswith(f"{release}."),
        {
            "attention kernel named": not _ATTENTION & set(assumed),
            "an input assumed": bool(_INPUTS & set(assumed)),
            "card measured": "attention" in measured_on(find_gpu(machines.card)),
            "several nodes": several,
        },
    )


_OTHER_ENGINE = {"DeepSpeed's stage 1 with overlap_comm in place of InternEvo's own ZeRO-1"}
_ATTENTION = {"FlashAttention 2", "attention written out"}
_INPUTS = {"checkpointing", "no checkpointing", "stage 3", "overlap_comm", "no gradient accumulation"}
_INPUTS |= {"whether activations are checkpointed", "ZeRO-3 as transformers fills it"}
_NETWORKS = {"a network of 400 Gbit/s", "the default network", "4 network cards of 100 Gbit/s a node"}
"""What `published_runs` and `published_throughput` call inputs that a source does not name."""


def calibrated_rows() -> list[Row]:
    """Steps of DeepSpeed on a machine that was calibrated."""
    rows = json.loads(CALIBRATED.read_text(encoding="utf-8"))["rows"]
    return [
        Row(
            -number,
            "whole steps",
            class_of(one["shares"], None, deepspeed=True, calibrated=True),
            math.log(one["measured"] / one["predicted"]),
            _costs(one),
        )
        for number, one in enumerate(rows, start=1)
    ]


def _costs(one: Mapping[str, Any]) -> dict[End, float]:
    return {"low": math.log(one["predicted"] / one["low"]), "high": math.log(one["high"] / one["predicted"])}


def source_of(name: str) -> str:
    """Who published a row: a repository, and the number of an issue."""
    issue = re.search(r"(?i)\b(?:issue|discussion|pull)s? #?(\d+)", name)
    return name.split()[0].strip(",:") + (f" {issue[1]}" if issue else "")


# ---- how good ranges are


@dataclass(frozen=True)
class Judged:
    """Ranges of some rows."""

    ranges: Sequence[tuple[Row, Range]]

    @property
    def coverage(self) -> float:
        """Share of rows within their ranges."""
        return statistics.fmean(low <= row.off <= high for row, (low, high) in self.ranges)

    @property
    def coverage_of_sources(self) -> float:
        """The mean of all sources' coverages."""
        by_source = defaultdict(list)
        for row, (low, high) in self.ranges:
            by_source[row.source].append(low <= row.off <= high)
        return statistics.fmean(map(statistics.fmean, by_source.values()))

    @property
    def width(self) -> float:
        """The median of high / low."""
        return statistics.median(math.exp(high - low) for _, (low, high) in self.ranges)

    @property
    def score(self) -> float:
        """Winkler's, of logarithms: the mean."""
        return statistics.fmean(map(_score, self.ranges))

    def figures(self) -> dict[str, float]:
        """All of them, rounded."""
        names = ("coverage", "coverage_of_sources", "width", "score")
        return {name: round(getattr(self, name), 3) for name in names}

    @property
    def words(self) -> str:
        """A cell of a table."""
        return _words(self.figures())


def _words(of: Mapping[str, float]) -> str:
    covered = f"{of['coverage']:.0%} of rows, {of['coverage_of_sources']:.0%} of sources"
    return f"{covered}, width {of['width']:.2f}, score {of['score']:.2f}"


def _score(judged: tuple[Row, Range]) -> float:
    row, (low, high) = judged
    return high - low + 2 / (1 - COVERAGE) * max(0.0, low - row.off, row.off - high)


def before(rows: Sequence[Row]) -> Judged:
    """The range of the costs alone."""
    return Judged([(row, (-row.costs["low"], row.costs["high"])) for row in rows])


def in_sample(rows: Sequence[Row], options: Options) -> Judged:
    """By a table made of the same rows."""
    table = Table(options, rows)
    return Judged([(row, table.range(row)) for row in rows])


def left_out(rows: Sequence[Row], options: Options) -> Judged:
    """Each source by a table made of the others."""
    found: list[tuple[Row, Range]] = []
    for source in dict.fromkeys(row.source for row in rows):
        table = Table(options, [row for row in rows if row.source != source])
        found += [(row, table.range(row)) for row in rows if row.source == source]
    return Judged(found)


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All rows, those of each engine, and those of each class."""
    found = {"all": list(rows)}
    for engine in ENGINES:
        found[engine] = [row for row in rows if row.engine == engine]
    for name in CLASSES:
        found[name] = [row for row in rows if row.run_class == name]
    return {name: group for name, group in found.items() if group}


def results(rows: Sequence[Row]) -> dict[str, Any]:
    """What is recorded: figures by group of rows."""
    judged = {"before": before(rows), "in_sample": in_sample(rows, CHOSEN), "left_out": left_out(rows, CHOSEN)}
    found: dict[str, Any] = {}
    for name, group in groups(rows).items():
        numbers = {row.row for row in group}
        found[name] = {"rows": len(group), "sources": len({row.source for row in group})}
        for what, one in judged.items():
            found[name][what] = Judged([pair for pair in one.ranges if pair[0].row in numbers]).figures()
    return found


def made_table(rows: Sequence[Row], calibrated: Sequence[Row]) -> dict[str, Any]:
    """What the product reads."""
    table = Table(CHOSEN, rows, calibrated)
    return {
        "comment": "made by python -m tests.validation.rehearsal.ranges --write",
        "power": CHOSEN.power,
        "classes": {
            name: {"description": CLASSES[name], "published": _inside(rows, name), **widths}
            for name, widths in table.classes().items()
        },
    }


def _inside(rows: Sequence[Row], run_class: str) -> list[int] | None:
    """How many rows of a class lie inside their range with their source left out, and how many there are."""
    found = [pair for pair in left_out(rows, CHOSEN).ranges if pair[0].run_class == run_class]
    return [round(Judged(found).coverage * len(found)), len(found)] if found else None


def compared(rows: Sequence[Row]) -> Iterator[str]:
    """A table of ways to make ranges: of left-out sources, all and those of DeepSpeed."""
    yield "| power | finer classes | all | DeepSpeed |\n|---|---|---|---|"
    ways = [
        replace(CHOSEN, power=power, split=split) for power in (0.0, 0.5, 1.0) for split in ("", "certainty", "work")
    ]
    for options in (*ways, *(replace(CHOSEN, split=split) for split in rows[0].splits)):
        found = left_out(rows, options)
        deepspeed = Judged([pair for pair in found.ranges if pair[0].engine == "DeepSpeed"])
        yield f"| {options.power} | {options.split or 'none'} | {found.words} | {deepspeed.words} |"


def tables(rows: Sequence[Row], found: Mapping[str, Any]) -> Iterator[str]:
    """What is printed and recorded."""
    yield "# Ranges of published runs\n\n`python -m tests.validation.rehearsal.ranges --write` makes this page.\n"
    yield "Left-out sources by the way in which ranges are made; `ranges` uses power 0.5 and `certainty`:\n"
    yield from compared(rows)
    if newest := [row for row in rows if row.row >= NEWEST]:
        table = Table(CHOSEN, [row for row in rows if row.row < NEWEST])
        judged = Judged([(row, table.range(row)) for row in newest])
        yield f"\nThe {len(newest)} rows from {NEWEST} on, by a table of those before: {judged.words}"
        yield f"(the costs alone: {before(newest).words})."
    yield (
        "\nThe reported range, by class:\n\n| rows | of sources | costs alone | in sample | left out |\n"
        + "|---" * 5
        + "|"
    )
    for name, group in found.items():
        cells = [_words(group[what]) for what in ("before", "in_sample", "left_out")]
        yield f"| {name}: {group['rows']} | {group['sources']} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    is_written = parser.parse_args().write
    rows = published_rows()
    found = results(rows)
    page = "\n".join(tables(rows, found)) + "\n"
    print(page, end="")
    if is_written:
        for path, content in ((TABLE, made_table(rows, calibrated_rows())), (WRITTEN, found)):
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

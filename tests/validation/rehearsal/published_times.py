"""Rehearses the time of runs whose throughput others have published, and writes both side by side.

``python -m tests.validation.rehearsal.published_times FILE`` reads rows as
`tests.validation.hardware.published_throughput` does, rehearses each one that says enough with ``--time``,
and prints what was predicted and measured, then medians and 90th percentiles of the error by source.
``--rows 55 219 14-33`` takes some rows, by their places in FILE or the numbers that they have there. Without
FILE it reads later_rows.json, rows that were looked for and written down after the costs stood, and
newest_rows.json, more of them. With
``--write`` each goes to results/published_times.json as soon as it is done; those that are there already are
left out unless ``--again``. ``--python NAME=INTERPRETER`` is an environment with a row's own libraries,
where today's run another program; without it such rows are left out. ``--show`` prints what is written, and
rehearses nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY
from tests.validation.hardware.published_throughput import Judged, judged
from tests.validation.percentiles import nearest_rank
from tests.validation.rehearsal.newest_runs import run_of
from tests.validation.rehearsal.published_machines import card_of
from tests.validation.rehearsal.published_runs import Run

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "published_times.json"
LATER = Path(__file__).with_name("later_rows.json")
NEWEST = Path(__file__).with_name("newest_rows.json")
FIRST_LATER = 300
FIRST_NEWEST = 400
"""The numbers of their first rows."""
FAR = 0.25
"""An error beyond which records/time-accuracy.md has something to say of a row."""
SHORT = 2048
"""Tokens of a GPU's micro-batch; with fewer a step's time is much of the host's."""


def step_seconds(times: Sequence[float], accumulated: Sequence[int], accumulation: int) -> float:
    """Of a step of so many micro-batches, from the steps that were played.

    Args:
        times: of the steps.
        accumulated: micro-batches of each; of the last two they may differ, and the row's have others.
        accumulation: micro-batches of a step in the row.
    """
    before, last = times[-2:]
    fewer, more = accumulated[-2:]
    if more in (accumulation, fewer):
        return last
    return last + (accumulation - more) * (last - before) / (more - fewer)


def rehearsed(run: Run, python: str = sys.executable) -> dict[str, Any]:
    """What a rehearsal says of it, by the libraries beside an interpreter.

    Raises:
        RuntimeError: it did not come to its end.
    """
    machines, plan = run.machines, run.plan
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(dataclasses.asdict(plan)), encoding="utf-8")
        card = ["--gpu", machines.card]
        if machines.network_gbit_s is not None or machines.bandwidth_gb_s is not None:
            (folder / "card.json").write_text(json.dumps({"gpu": card_of(machines)}), encoding="utf-8")
            card = ["--hardware", "card.json"]
        done = rehearse(
            *("--num-gpus", machines.gpus, "--gpus-per-node", machines.gpus_per_node, *card),
            *("--time", "--steps", len(plan.accumulated), "--rank", 0, "--no-advise", "--format", "json"),
            *("--gpu-memory", "4TiB", "--host-memory", "16TiB"),
            *("--launcher", run.launcher or ("deepspeed" if plan.engine == "deepspeed" else "torchrun")),
            *(Path(__file__).with_name("scripts") / "published_model.py", "plan.json"),
            cwd=folder,
            python=python,
            variables=run.variables,
        )
    if done.code not in (0, 1):
        raise RuntimeError(done.err[-2000:])
    time = done.report["time"]
    times = [one["seconds"] for one in time["steps"]]
    seconds = (
        statistics.mean(times[: run.first]) if run.first else step_seconds(times, plan.accumulated, run.accumulation)
    )
    last = time["step_seconds"]
    return {
        "predicted": round(seconds, 4),
        # Of the costs: `ranges` makes the reported range of it.
        "low": round(seconds * time["costs_low_seconds"] / last, 4),
        "high": round(seconds * time["costs_high_seconds"] / last, 4),
        "shares": {name: round(part / last, 3) for name, part in time["breakdown"].items()},
        "kernels": {one["name"]: round(one["seconds"] / last, 3) for one in time["kernels"][:6]},
        "mfu": round(time["mfu"], 3),
        "hfu": round(time["hfu"], 3),
        "versions": done.report["run"]["versions"],
    }


def written_row(place: int, one: Judged, run: Run | None, told: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row of the file: what was published, what it lacks or what was assumed, and what came out."""
    published = {key: value for key, value in one.row.items() if key != "row" and value is not None}
    if run is None or told is None:
        return {"row": place, "published": published, "lacks": list(one.lacks) or ["the model's layers"]}
    assert one.step_seconds is not None
    return {
        "row": place,
        "published": published,
        "assumed": [*one.assumed, *run.assumed],
        "measured": round(one.step_seconds, 4),
        **told,
        "error": round(told["predicted"] / one.step_seconds - 1, 4),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def summary(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line of a table for each source, and one for all: rows, and the size of their errors."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "error" in row:
            by_source[row["published"]["source"]].append(abs(row["error"]))
    every = [error for errors in by_source.values() for error in errors]
    for source, unordered in [*by_source.items(), *([("all", every)] if every else [])]:
        errors = sorted(unordered)
        cells = [f"{len(errors)}", _percent(statistics.median(errors)), _percent(nearest_rank(errors, 0.9))]
        yield _cells(source, *cells, f"{sum(error > FAR for error in errors)}")


def kind_of(row: Mapping[str, Any]) -> str:
    """Of a row that was tried: what its step's time hangs on most, as far as the source tells."""
    told = row["published"]
    if told.get("offload_optimizer") or told.get("offload_param"):
        return "offload"
    return "short batch" if told["micro_batch"] * told["seq_len"] < SHORT else "other"


def summary_by_kind(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line of a table for each kind, and one for all: rows, their errors' size and middle, those in range."""
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if "error" in row:
            by_kind[kind_of(row)].append(row)
    every = [row for some in by_kind.values() for row in some]
    for kind, some in [*sorted(by_kind.items()), *([("all", every)] if every else [])]:
        errors = [row["error"] for row in some]
        sizes = sorted(map(abs, errors))
        cells = [_percent(statistics.median(sizes)), _percent(nearest_rank(sizes, 0.9))]
        within = sum(row["low"] <= row["measured"] <= row["high"] for row in some)
        yield _cells(kind, len(some), *cells, _signed(statistics.median(errors)), within)


def line_of(row: Mapping[str, Any]) -> str:
    """A row of a table: its place, the run, and what it lacks or what came out."""
    told = row["published"]
    batch = " x ".join(str(told.get(key) or "?") for key in ("micro_batch", "seq_len"))
    run = [str(told.get(key) or "?") for key in ("model", "gpu", "n_gpus")]
    if "lacks" in row:
        return _cells(row["row"], *run, batch, f"lacks {', '.join(row['lacks'])}")
    shares = [(share, name) for name, share in row["shares"].items() if share >= 0.05]
    parts = ", ".join(f"{name.replace('_', ' ')} {_percent(share)}" for share, name in sorted(shares)[::-1])
    seconds = [f"{row[key]:.3g}" for key in ("measured", "predicted")]
    return _cells(row["row"], *run, batch, *seconds, _signed(row["error"]), parts)


def _cells(*words: object) -> str:
    return f"| {' | '.join(map(str, words))} |"


def _signed(share: float) -> str:
    return f"{share:+.0%}"[:-1] + " %"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _places(words: Sequence[str]) -> list[int]:
    """Of `55` and `14-33`."""
    places: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        places += range(int(first), int(last or first) + 1)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--python", nargs="*", default=[], metavar="NAME=INTERPRETER")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    pythons = {"": sys.executable} | dict(word.split("=", 1) for word in options.python)
    known = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.is_file() else []
    rows: dict[int, dict[str, Any]] = {row["row"]: row for row in known}
    if not options.show:
        files = [options.file] if options.file else [LATER, NEWEST]
        given = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
        published = {row.get("row", at): judged(row) for at, row in enumerate(given)}
        for place in _places(options.rows) or published:
            if "error" in rows.get(place, {}) and not options.again:
                continue
            one = published[place]
            run = None if one.lacks else run_of(one.row)
            if run is not None and run.environment not in pythons:
                print(f"{place:4} needs --python '{run.environment}=INTERPRETER'", file=sys.stderr, flush=True)
                continue
            try:
                told = None if run is None else rehearsed(run, pythons[run.environment])
            except RuntimeError as error:
                print(f"{place:4} could not be rehearsed: {error}", file=sys.stderr, flush=True)
                continue
            rows[place] = written_row(place, one, run, told)
            print(line_of(rows[place]), flush=True)
            if options.write:
                inorder = [rows[at] for at in sorted(rows)]
                WRITTEN.write_text(json.dumps(inorder, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        for row in rows.values():
            print(line_of(row))
    print("\n".join(summary(rows.values())))
    print("\n".join(summary_by_kind(row for at, row in rows.items() if at >= FIRST_NEWEST)))


if __name__ == "__main__":
    main()

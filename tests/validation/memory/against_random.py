"""Compare the estimate with the rehearsal of runs drawn at random, family by family.

    python -m tests.validation.memory.against_random [--count N] [--seed S]

A rehearsal takes 10 to 40 seconds. Each is recorded in results/estimate_random.json as it comes, under
its seed, so that the command can be interrupted and goes on where it was; estimates are made anew for all
points of the seed. The summary goes to records/estimate-accuracy.md, rows to records/estimate-random.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.memory.families import BY_TYPE, with_layers
from tests.validation.memory.rehearsed import Point, rehearse
from zerokit.memory import Estimate, estimate
from zerokit.models import ModelShape, load_model_shape
from zerokit.units import format_bytes

RECORD = REPOSITORY / "tests" / "validation" / "results" / "estimate_random.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "estimate-accuracy.md"
ROWS_PAGE = REPOSITORY / "tests" / "validation" / "records" / "estimate-random.md"
BEGIN, END = "<!-- random: begin -->", "<!-- random: end -->"
FAMILIES = sorted(set(BY_TYPE) - {"vit"})
"""All that read text."""
SEED = 20
CPU = {"device": "cpu"}


def drawn(seed: int, count: int) -> Iterator[Point]:
    """The first `count` points of `seed`; the same ones whatever `count` is."""
    for number in range(count):
        yield _drawn(f"{seed}-{number}", FAMILIES[number % len(FAMILIES)])


def _drawn(name: str, family: str) -> Point:
    choose = random.Random(name)
    entry = choose.choice(BY_TYPE[family])
    shape = _shape(entry.id)
    stage = choose.randrange(4)
    zero: dict[str, Any] = {"stage": stage}
    if stage and choose.random() < 0.4:
        zero["offload_optimizer"] = CPU
        if stage == 3 and choose.random() < 0.5:
            zero["offload_param"] = CPU
    config = with_layers(entry.config, choose.randint(2, 4))
    changes = {key: value for key, value in config.items() if entry.config.get(key) != value}
    if family in ("t5", "mt5"):
        changes |= {"decoder_start_token_id": 0, "pad_token_id": 0}
    longest = (shape.max_position_embeddings or 4096) - 2
    return Point(
        f"{name} {entry.short_names[0]}",
        entry.id,
        zero,
        num_gpus=choose.choice([1, 2, 4, 8, 16, 32]),
        micro_batch_size=choose.choice([1, 2, 4]),
        seq_len=min(choose.choice([512, 1024, 2048, 4096]), longest),
        checkpointing=choose.random() < 0.5,
        attention="sdpa" if shape.has_sdpa else "eager",
        changes=changes,
    )


@cache
def _shape(model: str) -> ModelShape:
    return load_model_shape(model)


def row_of(point: Point, told: Estimate, rehearsed: dict[str, int]) -> dict[str, Any]:
    """What is recorded of a point: bytes of rank 0."""
    return {
        "point": asdict(point),
        "model_type": load_model_shape(point.config).model_type,
        "checked": told.activations_checked,
        "rehearsed": rehearsed,
        "estimated": {
            "peak_bytes": told.device.peak_bytes,
            "steady_bytes": told.device.steady_bytes,
            "low_bytes": told.peak_bounds[0],
            "high_bytes": told.peak_bounds[1],
        },
    }


def error(row: dict[str, Any], name: str = "peak_bytes") -> float:
    """Of the estimate, relative."""
    return float(row["estimated"][name] / row["rehearsed"][name] - 1)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Over the families whose activations have been compared, and how often the others' interval holds."""
    checked = [error(row) for row in rows if row["checked"]]
    others = [row for row in rows if not row["checked"]]
    held = [holds(row) for row in others]
    return {
        "points": len(rows),
        "families": len({row["model_type"] for row in rows}),
        "median": statistics.median(map(abs, checked)),
        "worst_above": max(checked),
        "worst_below": min(checked),
        "within_8_percent": sum(abs(one) <= 0.08 for one in checked) / len(checked),
        "unchecked": len(others),
        "unchecked_held": sum(held),
    }


def holds(row: dict[str, Any]) -> bool:
    """Whether the interval of the estimate has what was rehearsed."""
    told = row["estimated"]
    return bool(told["low_bytes"] <= row["rehearsed"]["peak_bytes"] <= told["high_bytes"])


def write(draws: dict[str, dict[str, Any]]) -> None:
    """The record, the summary on its page and the rows on theirs; `draws` by their seed."""
    record = {
        "what": "estimate against rehearsal of random runs (memory/against_random.py), rank 0",
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
        "draws": draws,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for page, lines in ((PAGE, _said), (ROWS_PAGE, _section)):
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n\n".join("\n".join(lines(seed, draw["rows"])) for seed, draw in draws.items())
        page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _said(seed: str, rows: list[dict[str, Any]]) -> list[str]:
    found = summary(rows)
    return [
        f"{found['points']} points of {found['families']} families, seed {seed}. Over the checked families",
        f"the peak's median error is {found['median']:.1%}, the worst {found['worst_below']:+.1%} and",
        f"{found['worst_above']:+.1%}; {found['within_8_percent']:.0%} are within 8 %.",
        f"Of {found['unchecked']} points of other families, the interval holds {found['unchecked_held']}.",
    ]


def _section(seed: str, rows: list[dict[str, Any]]) -> list[str]:
    lines = [*_said(seed, rows), "", "| run | rehearsed | estimated | error |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["model_type"]):
        lines.append(f"| {_words(row)} | {format_bytes(row['rehearsed']['peak_bytes'])} | {_told(row)} |")
    return lines


def _words(row: dict[str, Any]) -> str:
    point = row["point"]
    words = [f"stage {point['zero']['stage']}", f"{point['num_gpus']} GPUs"]
    words += [key.removeprefix("offload_") + " on the host" for key in point["zero"] if key != "stage"]
    words += ["checkpointing"] * point["checkpointing"]
    sizes = f"{point['micro_batch_size']} x {point['seq_len']}"
    return f"{row['model_type']} ({point['model'].rpartition('/')[2]}): {', '.join(words)}, {sizes}"


def _told(row: dict[str, Any]) -> str:
    told = row["estimated"]
    if row["checked"]:
        return f"{format_bytes(told['peak_bytes'])} | {error(row):+.1%}"
    between = f"{format_bytes(told['low_bytes'])} to {format_bytes(told['high_bytes'])}"
    return f"{between} | {'holds' if holds(row) else 'misses'}"


def _key(point: Point) -> str:
    return json.dumps(asdict(point), sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=len(FAMILIES), help="points to have at the end")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    print(f"seed {args.seed}")
    draws = json.loads(RECORD.read_text(encoding="utf-8"))["draws"] if RECORD.is_file() else {}
    recorded = draws.get(str(args.seed), {"rows": []})["rows"]
    known = {_key(Point(**row["point"])): row["rehearsed"] for row in recorded}
    rows: list[dict[str, Any]] = []
    for number, point in enumerate(drawn(args.seed, args.count), 1):
        key = _key(point)
        told = estimate(replace(point.training_run(), rank=0))
        if key not in known:
            device = rehearse(point)["device"]
            known[key] = {name: device[name] for name in ("peak_bytes", "steady_bytes")}
        rows.append(row_of(point, told, known[key]))
        print(f"{number}/{args.count} {_words(rows[-1])}: {_told(rows[-1])}", flush=True)
        if any(row["checked"] for row in rows):
            write({**draws, str(args.seed): {"summary": summary(rows), "rows": rows}})


if __name__ == "__main__":
    main()

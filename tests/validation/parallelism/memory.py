"""Compare the estimate with rehearsals of runs with sequence or tensor parallelism, drawn at random.

    python -m tests.validation.parallelism.memory [--count N]

A rehearsal takes 10 to 60 seconds, and covers one rank of each role. Each is recorded in
results/parallel_memory.json as it comes, so that the command can be interrupted; estimates are made anew.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from tests.tiny import REPOSITORY
from tests.validation.memory.families import BY_TYPE, with_layers
from tests.validation.memory.rehearsed import Point, rehearse
from zerokit.hardware.cluster import Parallelism
from zerokit.memory import TrainingRun, estimate
from zerokit.models import ModelShape, load_model_shape

RECORD = REPOSITORY / "tests" / "validation" / "results" / "parallel_memory.json"
SEQUENCE_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "starcoder2", "granite")
TENSOR_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SEED = 34
_SIZES = ("peak_bytes", "steady_bytes")


@dataclass(frozen=True)
class ParallelPoint(Point):
    """A run whose ranks share sequences or layers."""

    script: ClassVar[Path] = Path(__file__).with_name("train_one.py")
    sequence: int = 1
    tensor: int = 1

    @property
    def ds_config(self) -> dict[str, Any]:
        """What DeepSpeed is given."""
        sizes = {"tensor_parallel": {"autotp_size": self.tensor}} if self.tensor > 1 else {}
        return {**super().ds_config, **sizes}

    def training_run(self) -> TrainingRun:
        """The run that the estimate gets."""
        return replace(super().training_run(), parallelism=Parallelism(self.sequence, self.tensor))


def drawn(count: int) -> Iterator[ParallelPoint]:
    """The first `count` points; the same ones for every `count`."""
    for number in range(count):
        yield _drawn(f"{SEED}-{number}", is_sequence=number % 5 < 3)


def _drawn(name: str, *, is_sequence: bool) -> ParallelPoint:
    choose = random.Random(name)
    families = SEQUENCE_FAMILIES if is_sequence else TENSOR_FAMILIES
    while True:
        entry = choose.choice(BY_TYPE[choose.choice(families)])
        size = choose.choice([2, 4, 8])
        if _divides(load_model_shape(entry.config), size, is_sequence=is_sequence):
            break
    config = with_layers(entry.config, choose.randint(2, 12))
    return ParallelPoint(
        f"{name} {entry.short_names[0]}",
        entry.id,
        {"stage": 3 if is_sequence else choose.choice([0, 1, 3])},
        num_gpus=size * choose.choice([number for number in (1, 2, 4) if number * size <= 32]),
        micro_batch_size=choose.choice([1, 1, 2]),
        seq_len=choose.choice([1024, 4096, 16384, 65536] if is_sequence else [1024, 2048, 8192]),
        accumulation=choose.choice([1, 2]),
        checkpointing=choose.random() < 0.6,
        changes={key: value for key, value in config.items() if entry.config.get(key) != value},
        sequence=size if is_sequence else 1,
        tensor=1 if is_sequence else size,
    )


def _divides(shape: ModelShape, size: int, *, is_sequence: bool) -> bool:
    heads, shared = shape.num_attention_heads or 1, shape.num_key_value_heads or 1
    return heads % size == 0 and (shared % size == 0 or (is_sequence and size % shared == 0))


def rehearsed(point: ParallelPoint, **options: Any) -> dict[str, dict[str, int]]:
    """Bytes of each rehearsed rank: one of each role."""
    report = rehearse(point, **options)
    ranks = report["ranks"] or [{"rank": 0, **{f"device_{key}": report["device"][key] for key in _SIZES}}]
    return {str(one["rank"]): {key: one[f"device_{key}"] for key in _SIZES} for one in ranks}


def compare(point: ParallelPoint, ranks: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A row of the record: `rehearsed` ranks beside their estimates, and the largest error of a peak."""
    run = point.training_run()
    devices = {rank: estimate(replace(run, rank=int(rank))).device for rank in ranks}
    fullest = max(one["peak_bytes"] for one in ranks.values())
    errors = [devices[rank].peak_bytes / one["peak_bytes"] - 1 for rank, one in ranks.items()]
    return {
        "point": asdict(point),
        "rehearsed": ranks,
        "estimated": {rank: {key: getattr(device, key) for key in _SIZES} for rank, device in devices.items()},
        "error": max([*errors, estimate(run).device.peak_bytes / fullest - 1], key=abs),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Errors of the peak."""
    errors = [row["error"] for row in rows]
    return {"median": statistics.median(map(abs, errors)), "lowest": min(errors), "highest": max(errors)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="points to have at the end")
    parser.add_argument("--cache", type=Path, help="folder of reports of rehearsals")
    args = parser.parse_args()
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["rows"] if RECORD.is_file() else []
    known = {json.dumps(row["point"], sort_keys=True): row["rehearsed"] for row in recorded}
    rows: list[dict[str, Any]] = []
    for point in drawn(args.count):
        key = json.dumps(asdict(point), sort_keys=True)
        rows.append(compare(point, known[key] if key in known else rehearsed(point, cache=args.cache)))
        kind = f"sp {point.sequence}" if point.sequence > 1 else f"tp {point.tensor}"
        sizes = f"{point.micro_batch_size} x {point.seq_len} checkpointing={point.checkpointing}"
        print(
            f"{rows[-1]['error']:+.2%} {point.name}: {kind}, {point.zero}, {point.num_gpus} GPUs, {sizes}", flush=True
        )
        record = {
            "what": "estimate against rehearsal of runs with sequence or tensor parallelism",
            "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
            "summary": summary(rows),
            "rows": rows,
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

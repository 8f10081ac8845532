"""The closed form of a step's time with sequence or tensor parallelism, compared with rehearsals.

    python -m tests.validation.parallelism.step_times --count 12

As `tests.validation.planning.step_times`: each configuration is drawn from its number and rehearsed once;
`tests/validation/results/parallel_step_times.json` keeps the times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

from tests.validation.parallelism.memory import ParallelPoint
from tests.validation.planning.step_times import _parts, predict, rehearse

RECORD = Path(__file__).parents[1] / "results" / "parallel_step_times.json"
_MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "Qwen/Qwen2-7B", "mistralai/Mistral-7B-v0.3")
_CARDS = ("A100-80GB-SXM", "H100-SXM", "H100-SXM", "H200", "B200", "A100-80GB-PCIe")


def draw(number: int) -> dict[str, Any]:
    """A configuration: the arguments of a `ParallelPoint`, the card, and the network between nodes."""
    rng = random.Random(f"parallel-{number}")
    is_sequence = number % 3 < 2
    nodes = rng.choice((1, 1, 2))
    model = rng.choice(_MODELS)
    size = rng.choice((2, 4) if "Qwen2-7B" in model else (2, 4, 8) if nodes == 1 else (4, 8, 16))
    zero: dict[str, Any] = {"stage": 3 if is_sequence else rng.choice((0, 1, 3))}
    return {
        "point": {
            "model": model,
            "zero": zero,
            "num_gpus": 8 * nodes,
            "micro_batch_size": rng.choice((1, 1, 2)),
            "seq_len": rng.choice((8192, 32768, 131072) if is_sequence else (2048, 4096, 8192)),
            "accumulation": rng.choice((1, 1, 2)),
            "checkpointing": is_sequence or rng.random() < 0.5,
            "changes": {"num_hidden_layers": rng.choice((2, 4, 6))},
            "sequence" if is_sequence else "tensor": size if is_sequence else min(size, 8),
        },
        "card": rng.choice(_CARDS),
        "network_gbit_s": rng.choice((400, 1600, 3200)) if nodes > 1 else None,
    }


def point_of(drawn: dict[str, Any]) -> ParallelPoint:
    """What is rehearsed."""
    return ParallelPoint("drawn", **drawn["point"])


def main() -> None:
    """Rehearse what is missing, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.record.read_text()) if options.record.is_file() else {}
    for number in range(options.first, options.count):
        drawn = draw(number)
        point, row = point_of(drawn), rows.get(str(number))
        if row is None or row["drawn"] != drawn:
            row = rows[str(number)] = {"drawn": drawn, "rehearsed": rehearse(drawn, point)}
        real = row["rehearsed"]
        if "error" in real:
            print(number, "refused:", real["error"][-300:].replace("\n", " "))
            continue
        predicted = predict(drawn, real["host_threads"], point)
        row["predicted"] = {"seconds": predicted.seconds, "parts": predicted.parts}
        row["error"] = predicted.seconds / real["step_seconds"] - 1
        options.record.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(number, f"{row['error']:+.1%}", f"{real['step_seconds']:.3f}", drawn, flush=True)
        print("     ", _parts(real["breakdown"]), "|", _parts(predicted.parts), flush=True)
    errors = [abs(row["error"]) for row in rows.values() if "error" in row]
    if errors:
        print(f"{len(errors)} configurations: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()

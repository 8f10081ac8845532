"""Sorts published rows of throughput into those that say enough to be rehearsed with a clock, and the others.

``python -m tests.validation.hardware.published_throughput FILE`` reads a list of rows, each an object with
``source``, ``model``, ``gpu``, ``n_gpus``, ``micro_batch``, ``seq_len``, a figure and more, and prints by
source how many rows say enough and what the others lack. ``-o OUT`` writes all rows with what they lack,
what has to be assumed of them, and the seconds of a step that their figure means.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import find_gpu

Row = dict[str, Any]

CARDS = {
    "a100_40gb": "A100-40GB-SXM",
    "A100-40": "A100-40GB-SXM",
    "a100_80gb": "A100-80GB-SXM",
    "A100-80": "A100-80GB-SXM",
    "A800-80": "A800-80GB-SXM",
    "h100_80gb": "H100-SXM",
    "V100-16": "V100-16GB",
    "V100-32": "V100-32GB",
}
"""Names of the rows by those of the catalogue, where they differ."""

ASSUMED_CARDS = {
    "V100-16": "the SXM2 card",
    "V100-32": "the SXM2 card",
    "H100-96 500W": "an H100-SXM of 700 W with slower memory",
}

_SWIFT = "ms-swift Quick-start.md"
_INTERNEVO = "InternLM/InternEvo train_performance.md"
_MICRO_NUM = {3084: 2, 2346: 1}
"""InternEvo's micro-batches of a step by tokens/s of a GPU, where they are others than in its other rows."""

_SIZE_ALONE = re.compile(r"<=|ZeRO-|^pi05|\s[\d.]+-[\d.]+B")
"""Words for a model that say its size and not its layers."""


@dataclass(frozen=True)
class Judged:
    """A row, and whether it can be compared."""

    row: Row
    lacks: tuple[str, ...]
    assumed: tuple[str, ...]
    step_seconds: float | None
    """That the figure means; None if it means none."""


def judged(row: Row) -> Judged:
    """What a row lacks, and what has to be assumed of it."""
    row = _as_its_page_has_it(row)
    lacks = [what for key, what in (("n_gpus", "the number of GPUs"),) if not row.get(key)]
    assumed = ["torch's version", "the attention kernel", "data as long as the sequence"]
    lacks += _card(row, assumed) + _model(row) + _engine(row, assumed)
    lacks += [
        f"the {what}" for key, what in (("micro_batch", "micro batch"), ("seq_len", "length")) if not row.get(key)
    ]
    if row.get("precision") is None:
        assumed.append("bf16 with fp32 master weights")
    if row.get("ckpt") is None:
        assumed.append("whether activations are checkpointed")
    if row.get("ga") is None and row.get("global_batch") is None:
        assumed.append("no gradient accumulation")
    seconds = None if lacks else step_seconds(row)
    if not lacks and seconds is None:
        lacks.append("a figure of time or tokens")
    return Judged(row, tuple(lacks), tuple(assumed), seconds)


def _as_its_page_has_it(row: Row) -> Row:
    """With what the gathered row leaves out."""
    if row.get("source") == _SWIFT:
        # Of its shell scripts of May 2025: 16 samples a step, so that one of 16 GPUs has one micro-batch.
        return row | {"global_batch": 16}
    if row.get("source") == _INTERNEVO and row.get("ga") is None:
        # "Micro Num" in the page's tables of FLOPS with and without checkpointing
        return row | {"ga": 1 if row.get("ckpt") else _MICRO_NUM.get(int(row["tokens_per_s_per_gpu"]), 4)}
    return row


def _card(row: Row, assumed: list[str]) -> list[str]:
    name = row.get("gpu")
    if not name:
        return ["the GPU"]
    if name in ASSUMED_CARDS:
        assumed.append(ASSUMED_CARDS[name])
    try:
        find_gpu(CARDS.get(name, name.partition(" ")[0].replace("-96", "")))
    except ZerokitError:
        return [f"which {name}"]
    return []


def _model(row: Row) -> list[str]:
    return ["the model's layers"] if _SIZE_ALONE.search(str(row.get("model") or "")) else []


def _engine(row: Row, assumed: list[str]) -> list[str]:
    """Whether what ran is DeepSpeed ZeRO, or does the same at the same times."""
    told = " ".join(str(row.get(key) or "") for key in ("zero_stage", "parallel", "method", "note", "peft"))
    if re.search(r"\b(TP|CP|PP)\d|1F1B", told) or row.get("tp") not in (None, 1):
        return ["an engine like ZeRO's: tensor, context or pipeline parallel"]
    if re.search(r"(?i)float8|fp8", told + str(row.get("precision") or "")):
        return ["16-bit products: they are in fp8"]
    if re.search(r"(?i)q-?lora", told):
        return ["16-bit weights: they are quantised"]
    if re.search(r"(?i)gkd|rlhf|megatron", str(row.get("source")) + told) and "bigscience" not in str(
        row.get("source")
    ):
        return ["a step of plain training"]
    if "compile" in told:
        assumed.append("what torch.compile fuses")
    if row.get("zero_stage") is None and row.get("n_gpus") not in (None, 1) and not re.search(r"dp\d|ZeRO-\d", told):
        return ["the stage of ZeRO"]
    if "FSDP" in told or "dp" in str(row.get("parallel") or ""):
        assumed.append("FSDP gathers and reduces as ZeRO does, one block ahead")
    return []


def step_seconds(row: Row) -> float | None:
    """Of one optimizer step, by whatever the row states; None if it states none that needs no guess."""
    accumulation = int(row.get("ga") or 1)
    if row.get("global_batch"):
        samples = int(row["global_batch"])
    else:
        samples = int(row["micro_batch"]) * accumulation * int(row["n_gpus"])
    tokens = samples * int(row["seq_len"])
    if row.get("sec_per_step") or row.get("sec_per_it"):
        return float(row.get("sec_per_step") or row["sec_per_it"])
    if row.get("samples_per_s"):
        return samples / float(row["samples_per_s"])
    if row.get("tokens_per_s"):
        return tokens / float(row["tokens_per_s"])
    if row.get("tokens_per_s_per_gpu"):
        return tokens / int(row["n_gpus"]) / float(row["tokens_per_s_per_gpu"])
    return None


def main() -> None:
    """Prints the table, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found = [judged(row) for row in json.loads(options.file.read_text(encoding="utf-8"))]
    by_source: dict[str, list[Judged]] = defaultdict(list)
    for one in found:
        by_source[one.row["source"]].append(one)
    for source, rows in by_source.items():
        lacking = Counter(what for one in rows for what in one.lacks)
        print(f"{sum(not one.lacks for one in rows):4} of {len(rows):4}  {source}")
        for what, count in lacking.most_common():
            print(f"{'':14}{count} lack {what}")
    print(f"{sum(not one.lacks for one in found):4} of {len(found):4}  in all")
    if options.output:
        written = [
            one.row | {"lacks": one.lacks, "assumed": one.assumed, "step_seconds": one.step_seconds} for one in found
        ]
        options.output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

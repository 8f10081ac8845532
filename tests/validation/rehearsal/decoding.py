"""What launching a kernel takes on hosts of published machines; written to results/decoding.json.

A language model of transformers that writes one token after the other, eagerly, has its GPU wait for the
host: a token then takes as long in 32 sequences as in one. ``python -m tests.validation.rehearsal.decoding
[--write]`` rehearses that program with narrow layers, so that nothing is left but the host, and with two
costs of a launch: what differs is the number of a token's kernels, and what is left is the rest of the
host's work. A published time of a token then tells the cost on its host. Nothing is trained in it, so that
published steps of training remain a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY
from tests.validation.rehearsal.published_models import llama

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "decoding.json"
_COSTS = (1e-5, 2e-5)


@dataclass(frozen=True)
class Token:
    """A published time of a token."""

    source: str
    card: str
    layers: int
    milliseconds: float


_ISSUE = "huggingface/transformers issue 29651: Llama-2-7B, transformers 4.35.0, torch 2.3"
_H2O = "h2oai/h2ogpt benchmarks/perf.md: Llama-2-7B by transformers in 16 bits, {} tokens/s"
_FMS = "foundation-model-stack pull request 69: LLaMA-13B by transformers, uncompiled; the card is not told"
_PER_SECOND = {"A100-80GB-SXM": 32.4529, "RTX 6000 Ada": 41.9433, "RTX 4090": 40.9252} | {
    "RTX A6000": 29.8526,
    "RTX 3090": 18.0571,
}
TOKENS = (
    Token(_ISSUE, "A100-80GB-PCIe", 32, 33.41),
    *(Token(_H2O.format(speed), card, 32, 1e3 / speed) for card, speed in _PER_SECOND.items()),
    Token(_FMS, "", 40, 35.71),
)


def host_of(layers: int) -> tuple[float, float]:
    """How many kernels a token has, and the seconds of the host besides launching them."""
    narrow = llama("llama", layers, 128, 32, 256, 320)
    seconds = []
    for cost in _COSTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.json").write_text(json.dumps(narrow), encoding="utf-8")
            hardware = {"gpu": "A100-80GB-SXM", "figures": {"launch": {"seconds": {"kernel": cost}}}}
            (folder / "card.json").write_text(json.dumps(hardware), encoding="utf-8")
            options = ("--num-gpus", 1, "--hardware", "card.json", "--time", "--no-advise")
            done = rehearse(*options, Path(__file__).with_name("scripts") / "decodes.py", "config.json", 1, cwd=folder)
        told = [line for line in done.out.splitlines() if line.startswith("seconds of a token:")]
        if not told:
            raise RuntimeError(done.err[-2000:])
        seconds.append(float(told[0].rpartition(" ")[2]))
    kernels = (seconds[1] - seconds[0]) / (_COSTS[1] - _COSTS[0])
    return kernels, seconds[0] - kernels * _COSTS[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    hosts = {layers: host_of(layers) for layers in {token.layers for token in TOKENS}}
    rows: list[dict[str, Any]] = []
    for token in TOKENS:
        kernels, rest = hosts[token.layers]
        launch = 1e6 * (token.milliseconds / 1e3 - rest) / kernels
        rows.append(
            asdict(token)
            | {"milliseconds": round(token.milliseconds, 2)}
            | {"kernels": round(kernels), "rest_milliseconds": round(1e3 * rest, 2)}
            | {"launch_microseconds": round(launch, 1)}
        )
        print(token.card, f"{launch:.1f}", token.source)
    print("median:", statistics.median(row["launch_microseconds"] for row in rows))
    if options.write:
        WRITTEN.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Rehearses runs of published sizes whose eight ranks divide a model or a sequence, beside counts by hand.

Too large for real ranks on a CPU, which `role_runs` has at small sizes. Each is rehearsed by the command that
a person types. `python -m tests.validation.rehearsal.large_roles` runs all and writes
results/large_roles.json.
"""

from __future__ import annotations

import datetime
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import processes
from tests.tiny import REPOSITORY
from tests.validation.rehearsal.public_scripts import MEASURE, REHEARSE, counted

SCRIPT = Path(__file__).with_name("scripts") / "large_roles.py"
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "large_roles.json"
NUM_GPUS = 8
_SEQUENCE = 2**20
_WORKSPACES = "2*32*2**20"
"""Of cuBLAS, on a card of Hopper."""
_BLOCK = "(2*4096*4096 + 2*4096*1024 + 3*4096*14336 + 2*4096)"
"""Parameters of a block of Llama-3.1-8B."""


@dataclass(frozen=True)
class LargeRun:
    """scripts/large_roles.py with its arguments, and what its ranks hold after a step, counted by hand."""

    arguments: tuple[str, ...]
    parameters: str
    """Of one rank's model."""
    steady: str
    """Bytes, by ``phi``, those parameters."""

    @property
    def name(self) -> str:
        return "-".join(word for word in self.arguments if not word.startswith("--"))


def _sequence(layers: int) -> LargeRun:
    return LargeRun(
        ("sequence", "--tokens", str(_SEQUENCE), "--layers", str(layers)),
        f"2*128256*4096 + 4096 + {layers}*{_BLOCK}",
        f"16*phi/{NUM_GPUS} + 2*1e6 + {_WORKSPACES}",
    )


MORE, FEWER = 32, 16
ALL = (
    _sequence(MORE),
    _sequence(FEWER),
    LargeRun(
        ("tensor", "--tokens", "2048", "--layers", "32"),
        # What AutoTP divides: the matrices of the blocks, and the head.
        "128256*4096 + 4096 + (128256*4096)/8 + 32*((2*4096*4096 + 2*4096*1024 + 3*4096*14336)/8 + 2*4096)",
        f"14*phi + {_WORKSPACES}",
    ),
    LargeRun(
        ("expert", "--tokens", "4096", "--layers", "4"),
        "4*(3*4096*14336 + 8*4096)",
        f"14*phi + 2*4096*4096 + {_WORKSPACES}",  # and the batch
    ),
)
GROWTH = f"2*4096*{_SEQUENCE}/{NUM_GPUS} + 16*{_BLOCK}/{NUM_GPUS}"
"""What a further block adds to the peak of the sequence: what checkpointing keeps, and its states."""


def rehearse(run: LargeRun) -> dict[str, Any]:
    """Every role of a run, what it was counted to hold, and what rehearsing it took."""
    with TemporaryDirectory() as scratch:
        report_file, measured = Path(scratch, "report.json"), Path(scratch, "measured")
        options = ["--num-gpus", str(NUM_GPUS), "--gpu", "H200", "--no-advise", "-o", str(report_file)]
        words = [*options, str(SCRIPT), *run.arguments]
        command = [sys.executable, "-c", REHEARSE, "rehearse", *words]
        processes.checked([sys.executable, "-c", MEASURE, str(measured), *command], together=True)
        report = json.loads(report_file.read_text(encoding="utf-8"))
        seconds, cpu_seconds, resident = map(float, measured.read_text(encoding="utf-8").split())
    phi = counted(run.parameters)
    expected = counted(run.steady, phi=phi)
    return {
        "name": run.name,
        "arguments": run.arguments,
        "roles": [
            {
                **{key: role[key] for key in ("role", "ranks", "rehearsed")},
                **{key: role["device"][key] for key in ("peak_bytes", "peak_phase", "steady_bytes")},
            }
            for role in report["roles"]
        ],
        "by_hand": {"parameters": run.parameters, "bytes": run.steady, "expected_bytes": round(expected)},
        "off": [round(role["device"]["steady_bytes"] / expected - 1, 4) for role in report["roles"]],
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "resident_bytes": round(resident),
        "versions": report["run"]["versions"],
    }


def growth_off(runs: list[dict[str, Any]]) -> float:
    """By how much of `GROWTH` the peak of the sequence grows otherwise, with a block."""
    more, fewer = ({run["name"]: run for run in runs}[_sequence(layers).name] for layers in (MORE, FEWER))
    found: float = (more["roles"][0]["peak_bytes"] - fewer["roles"][0]["peak_bytes"]) / (MORE - FEWER)
    return round(found / counted(GROWTH) - 1, 4)


def main() -> None:
    runs = []
    for run in ALL:
        runs.append(rehearse(run))
        print(f"{run.name}: {runs[-1]['off']} off", flush=True)
    document = {
        "what": "Bytes of every role at published sizes on eight H200s, rehearsed, and counted by hand",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "growth_of_the_sequences_peak_by_a_block": {"by_hand": GROWTH, "off": growth_off(runs)},
        "runs": runs,
    }
    WRITTEN.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Predict and measure steps that Python decides: ``python -m tests.validation.rehearsal.host_bound [--write]``.

40 plans of tiny models, none of which made the table of `tools.host_costs`, are trained by the real DeepSpeed on one
CPU rank, and rehearsed with the machine's calibrated unit. The rank plays one of four, by a process group whose
collectives do nothing.

Compared are a step's CPU seconds of Python. What torch's operators take here, on a processor, has nothing to do with a
launch's time on a GPU's host: a profile of the measured steps gives their share, which is subtracted, and the
rehearsal's operators take nearly no time.

Other programs only make steps longer, for minutes: all plans of a model are measured in rounds, and the fastest round
of each counts. With ``--write`` all goes into results/host_bound.json, as soon as a model's plans are measured or
predicted. Measure on an idle machine (``--measure``); predictions can be made on a busy one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "host_bound.json"
SCRIPT = REPOSITORY / "tests" / "validation" / "rehearsal" / "scripts" / "host_bound_steps.py"
LOW_QUANTILE = 0.2
"""Quantile of a round's steps, and of the machine's units."""
NEGLIGIBLE_SECONDS = {"kernel": 2e-8, "view": 1e-9, "collective": 9e-8}
"""Of operators in a rehearsal: a hardware file may not have 0.

Making the nodes of autograd, which a profile has in the operators, is counted; it is about 1 % of a step."""


@dataclass(frozen=True)
class Plan:
    """Steps of a model."""

    stage: int
    model: str
    """"tanh", "gated", or a type of transformers."""
    layers: int
    checkpointing: bool = False
    accumulation: int = 1
    bucket: int = 4000
    """Elements."""

    @property
    def name(self) -> str:
        words = [f"ZeRO-{self.stage}", f"{self.model} x {self.layers}", *["checkpointing"] * self.checkpointing]
        return ", ".join(words + [f"accumulation {self.accumulation}"] * (self.accumulation > 1))


def plans() -> list[Plan]:
    """40, with 50 to 5,000 parameters; in stage 3 to 1,200, as its time for each grows with their number."""
    found: list[Plan] = []
    for stage in range(4):
        kinds = [
            *[("tanh", 25), ("tanh", 100, False, 4), ("tanh", 300, True)],
            ("tanh", 600 if stage == 3 else 2500, False, 1, 100_000),
            *[("qwen2", 4), ("qwen2", 16, True), ("qwen2", 10, False, 4)],
            *[("gated", 20, True, 4), ("gated", 80), ("gated", 200, False, 1, 20_000)],
        ]
        found += [Plan(stage, *kind) for kind in kinds]
    return found


def plans_of(model: str) -> list[Plan]:
    """Of one model."""
    return [plan for plan in plans() if plan.model == model]


def written(folder: Path, chosen: Sequence[Plan]) -> Path:
    """The plans as the script reads them."""
    file = folder / "plans.json"
    file.write_text(json.dumps([asdict(plan) for plan in chosen]), encoding="utf-8")
    return file


def measured(model: str, earlier: Sequence[dict[str, Any]], num_rounds: int) -> list[dict[str, Any]]:
    """What a model's plans take on this machine, and the machine beside each: of each plan the fastest round.

    Args:
        earlier: the same of earlier rounds, or nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = written(Path(folder), plans_of(model))
        rounds = [measured_once(file) for _ in range(num_rounds)]
    known = {row["plan"]: [row] for row in earlier}
    return [
        fastest([*known.get(plan.name, []), *rows]) | {"plan": plan.name}
        for plan, *rows in zip(plans_of(model), *rounds, strict=True)
    ]


def fastest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a plan's rounds, with the seconds of each."""
    every = [round(seconds, 5) for row in rows for seconds in row.get("rounds", [seconds_of_step(row)])]
    return min(rows, key=seconds_of_step) | {"rounds": every}


def measured_once(file: Path) -> list[dict[str, Any]]:
    """One round."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(file), "real"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return list(printed(done.stdout))


def seconds_of_step(row: dict[str, Any]) -> float:
    """A step's CPU seconds in a round."""
    return float(np.quantile(row["seconds"], LOW_QUANTILE))


def seconds_of_python(row: dict[str, Any]) -> float:
    """The same without torch's operators; the first profiled step, to which Python adapts its code, is left out."""
    return seconds_of_step(row) * (1 - statistics.median(row["operators"][1:]))


def printed(text: str) -> Iterator[dict[str, Any]]:
    """The script's lines."""
    for line in text.splitlines():
        before, found, rest = line.partition("plan {")
        if found and not before.strip():
            yield json.loads("{" + rest)


def hardware(seconds: dict[str, float]) -> dict[str, Any]:
    """A processor in the place of a card, which does its work as the host launches it."""
    launch = seconds | NEGLIGIBLE_SECONDS
    gpu = {"name": "CPU", "platform": "cpu", "nominal_gb": 64, "bandwidth_gb_s": 1000}
    return {
        "gpu": gpu | {"tflops": {"bf16": 100, "fp32": 100}, "host_link": {"name": "measured", "gb_s": 100}},
        "figures": {
            "launch": {"seconds": launch},
            "memory": {"kernel_seconds": {"value": 1e-8}},
            "host": {"copy_seconds": {"value": 1e-8}},
        },
    }


def predicted(folder: Path, chosen: Sequence[Plan], seconds: dict[str, float]) -> list[float]:
    """What a rehearsal's clock shows of each plan's last step."""
    file, card = written(folder, chosen), folder / "machine.json"
    card.write_text(json.dumps(hardware(seconds)), encoding="utf-8")
    done = rehearse(
        *("--time", "--hardware", card, "--num-gpus", 4, "--rank", 0, "--steps", 0, "--no-advise"),
        *("--format", "json", "--gpu-memory", "1TiB", "--host-memory", "1TiB", SCRIPT, file),
        cwd=folder,
    )
    found = list(printed(done.err))
    if done.code not in (0, 1) or not found:
        raise RuntimeError(done.err[-4000:])
    return [one["seconds"][-1] for one in found]


def machine_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The machine's seconds."""
    every = [one for row in rows for one in row["machine"]]
    return {name: float(np.quantile([one[name] for one in every], LOW_QUANTILE)) for name in every[0]}


def compare(model: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Predict the plans of one model; `rows`: measured ones."""
    machine = machine_of(rows)
    with tempfile.TemporaryDirectory() as name:
        ours = predicted(Path(name), plans_of(model), machine)
    theirs = [seconds_of_python(row) for row in rows]
    found = [
        {
            "plan": plan.name,
            "predicted": round(our, 5),
            "measured": round(their, 5),
            "error": round(our / their - 1, 4),
        }
        for plan, our, their in zip(plans_of(model), ours, theirs, strict=True)
    ]
    return {"machine": machine, "rows": found}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the sizes of all errors."""
    errors = sorted(abs(row["error"]) for row in rows)
    return {"plans": len(rows), "median_error": round(statistics.median(errors), 4), "worst_error": errors[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", action="store_true", help="only measure, further rounds; with --write")
    models = sorted({plan.model for plan in plans()})
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument("--rounds", type=int, default=4, help="of a model's plans (default: 4)")
    options = parser.parse_args()
    known: dict[str, Any] = {"models": {}, "measured": {}}
    if WRITTEN.is_file():
        known = json.loads(WRITTEN.read_text(encoding="utf-8"))
    for model in options.models:
        if options.measure or model not in known["measured"]:
            known["measured"][model] = measured(model, known["measured"].get(model, ()), options.rounds)
            known["models"].pop(model, None)
            write(known, options.write)
    for model in () if options.measure else options.models:
        known["models"][model] = compare(model, known["measured"][model])
        write(known, options.write)


def write(known: dict[str, Any], into_file: bool) -> None:
    """Print what is known, and write it."""
    rows = [row for found in known["models"].values() for row in found["rows"]]
    is_whole = len(rows) == len(plans())
    command = "python -m tests.validation.rehearsal.host_bound --write"
    parts = {key: known[key] for key in ("models", "measured")}
    result = {"command": command, **(summary(rows) if is_whole else {}), **parts}
    print(json.dumps({key: result[key] for key in result if key != "measured"}, indent=1), flush=True)
    if into_file:
        WRITTEN.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

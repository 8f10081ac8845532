"""Predict and measure steps that Python decides: ``python -m tests.validation.rehearsal.host_bound [--write]``.

40 plans of tiny models, none of which made the table of `tools.host_costs`, are trained by the real DeepSpeed on one
CPU rank, and rehearsed with the machine's calibrated unit. The rank plays one of four, by a process group whose
collectives do nothing. Compared are the CPU seconds of a step.

The machine is measured beside each plan, because other programs change its speed: measured seconds are those of a
machine with the median unit. Operators differ on a processor: their cost is that with which the same kind of model is
predicted right without DeepSpeed. With ``--write`` all goes into results/host_bound.json, as soon as a model's plans
are measured or predicted. Measure on an idle machine (``--measure``); predictions can be made on a busy one.
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
KERNELS = (1e-6, 1e-5)
"""Seconds of an operator in two rehearsals without DeepSpeed."""
LEAST_KERNEL = 5e-7
"""Seconds of an operator, where Python alone is predicted to take longer than the step: a view takes as long."""
TYPICAL = 0.3
"""Quantile of the measured steps: other programs only make them longer."""


@dataclass(frozen=True)
class Plan:
    """Steps of a model."""

    stage: int | None
    """None: without DeepSpeed."""
    model: str
    """"tanh", "gated", or a type of transformers."""
    layers: int
    checkpointing: bool = False
    accumulation: int = 1
    bucket: int = 4000
    """Elements."""

    @property
    def name(self) -> str:
        by = "torch alone" if self.stage is None else f"ZeRO-{self.stage}"
        words = [by, f"{self.model} x {self.layers}", *["checkpointing"] * self.checkpointing]
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


def bare_plans() -> list[Plan]:
    """Each kind of model without DeepSpeed, for the cost of an operator."""
    return [Plan(None, "tanh", 60), Plan(None, "qwen2", 8), Plan(None, "gated", 40)]


def plans_of(model: str) -> list[Plan]:
    """Of one model, the one without DeepSpeed first."""
    return [plan for plan in [*bare_plans(), *plans()] if plan.model == model]


def written(folder: Path, chosen: Sequence[Plan]) -> Path:
    """The plans as the script reads them."""
    file = folder / "plans.json"
    file.write_text(json.dumps([asdict(plan) for plan in chosen]), encoding="utf-8")
    return file


def measured(folder: Path, chosen: Sequence[Plan]) -> list[dict[str, Any]]:
    """What plans take on this machine, and the machine beside each."""
    file = written(folder, chosen)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(file), "real"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return list(printed(done.stdout))


def printed(text: str) -> Iterator[dict[str, Any]]:
    """The script's lines."""
    for line in text.splitlines():
        before, found, rest = line.partition("plan {")
        if found and not before.strip():
            yield json.loads("{" + rest)


def hardware(seconds: dict[str, float], kernel: float) -> dict[str, Any]:
    """A processor in the place of a card, which does its work as the host launches it."""
    launch = {name: seconds[name] for name in ("python_call", "view", "node_made", "node_run", "collective")}
    gpu = {"name": "CPU", "platform": "cpu", "nominal_gb": 64, "bandwidth_gb_s": 1000}
    return {
        "gpu": gpu | {"tflops": {"bf16": 100, "fp32": 100}, "host_link": {"name": "measured", "gb_s": 100}},
        "figures": {
            "launch": {"seconds": launch | {"kernel": kernel}},
            "memory": {"kernel_seconds": {"value": 1e-8}},
            "host": {"copy_seconds": {"value": 1e-8}},
        },
    }


def predicted(folder: Path, chosen: Sequence[Plan], seconds: dict[str, float], kernel: float) -> list[float]:
    """What a rehearsal's clock shows of each plan's last step."""
    file, card = written(folder, chosen), folder / "machine.json"
    card.write_text(json.dumps(hardware(seconds, kernel)), encoding="utf-8")
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
    """The machine's seconds: its median unit, and everything else as the unit's multiple."""
    every = [one for row in rows for one in row["machine"]]
    unit = statistics.median(one["python_call"] for one in every)
    return {name: unit * statistics.median(one[name] / one["python_call"] for one in every) for name in every[0]}


def scaled(row: dict[str, Any], unit: float) -> float:
    """Seconds of a plan's step on a machine with this unit."""
    now = statistics.mean(one["python_call"] for one in row["machine"])
    return float(np.quantile(row["seconds"], TYPICAL)) * unit / now


def compare(model: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Predict the plans of one model; `rows`: measured ones."""
    chosen, machine = plans_of(model), machine_of(rows)
    alone, *theirs = (scaled(row, machine["python_call"]) for row in rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        low, high = (predicted(folder, chosen[:1], machine, end)[0] for end in KERNELS)
        kernel = kernel_seconds(low, high, alone)
        ours = predicted(folder, chosen[1:], machine, kernel)
    found = [
        {
            "plan": plan.name,
            "predicted": round(our, 5),
            "measured": round(their, 5),
            "error": round(our / their - 1, 4),
        }
        for plan, our, their in zip(chosen[1:], ours, theirs, strict=True)
    ]
    return {"machine": machine, "kernel": kernel, "rows": found}


def kernel_seconds(low: float, high: float, theirs: float) -> float:
    """Seconds of an operator with which a step without DeepSpeed is predicted right, :data:`LEAST_KERNEL` at least.

    Args:
        low: the step, predicted with the first of :data:`KERNELS`; `high`: with the second.
        theirs: the measured one.
    """
    return max(KERNELS[0] + (theirs - low) * (KERNELS[1] - KERNELS[0]) / (high - low), LEAST_KERNEL)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the sizes of all errors."""
    errors = sorted(abs(row["error"]) for row in rows)
    return {"plans": len(rows), "median_error": round(statistics.median(errors), 4), "worst_error": errors[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", action="store_true", help="only measure, again; with --write")
    models = [plan.model for plan in bare_plans()]
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    options = parser.parse_args()
    known: dict[str, Any] = {"models": {}, "measured": {}}
    if WRITTEN.is_file():
        known = json.loads(WRITTEN.read_text(encoding="utf-8"))
    for model in options.models:
        if options.measure or model not in known["measured"]:
            with tempfile.TemporaryDirectory() as folder:
                known["measured"][model] = measured(Path(folder), plans_of(model))
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

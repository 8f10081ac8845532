"""Steps of one model on one GPU, predicted and measured: ``python -m tests.validation.gpu.step_times``.

``zerokit calibrate`` measures the machine, with none of these steps. Then each configuration is run for real,
and rehearsed twice: by the catalogue's figures of the card, and by the calibration. Compared is what the
script itself prints of its steps. All goes into tests/validation/results/gpu_time.json, with the calibration.
``--measure-only`` begins the file anew, and ``--rehearse-only`` adds the second half to it, for which no GPU
is needed, so that they may be done on two machines. Nothing else should run beside the first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY
from tests.validation.calibration.whole_steps import WARM, printed_seconds
from tests.validation.gpu.compare_with_gpu import (
    SCRIPT,
    Configuration,
    Figures,
    gpu_of_this_machine,
    measure,
    versions,
)

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "gpu_time.json"
MODEL = "llama-3.2-1b"
STEPS = WARM + 5
LIMIT_SECONDS = 240.0
"""For one configuration."""
CATALOGUE, CALIBRATED = "catalogue", "calibration"


def _of(name: str, options: str) -> Configuration:
    return Configuration(name, f"--model {MODEL} --steps {STEPS} {options}")


CONFIGURATIONS = (
    _of("zero0", "--stage 0 --sequence 2048"),
    _of("zero1-few-tokens", "--stage 1 --sequence 512"),
    _of("zero1-batch-4", "--stage 1 --sequence 1024 --micro-batch 4"),
    _of("zero2", "--stage 2 --sequence 4096"),
    _of("zero2-checkpointing", "--stage 2 --sequence 4096 --micro-batch 2 --checkpointing"),
    _of("zero2-accumulation", "--stage 2 --sequence 2048 --accumulation 4"),
    _of("zero2-offload", "--stage 2 --sequence 2048 --offload-optimizer"),
    _of("zero3", "--stage 3 --sequence 2048 --micro-batch 2"),
    _of("zero3-long", "--stage 3 --sequence 16384 --checkpointing"),
    _of("zero3-offload-all", "--stage 3 --sequence 2048 --offload-optimizer --offload-param"),
    _of("zero2-eager", "--stage 2 --sequence 1024 --micro-batch 2 --attention eager"),
    _of("zero2-lora", "--stage 2 --sequence 2048 --micro-batch 4 --lora"),
)


def calibrated(folder: Path) -> dict[str, Any]:
    """What this machine takes now, as ``--hardware`` reads it."""
    file = folder / "machine.json"
    command = [sys.executable, "-m", "zerokit", "calibrate", "--device", "cuda", "--ranks", "1", "-o", str(file)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def predicted(configuration: Configuration, hardware: list[str], folder: Path) -> Figures:
    """The seconds that a rehearsed step prints, and the range that the report tells.

    Args:
        configuration: the run.
        hardware: the options that say which machine.
        folder: to run in.
    """
    done = rehearse(
        *("--time", *hardware, "--num-gpus", 1, "--steps", 0, "--no-advise", "--format", "json"),
        *(SCRIPT, *configuration.arguments(nvcc=False), "--output", "figures.json"),
        cwd=folder,
    )
    time = done.report["time"]
    seconds = statistics.median(printed_seconds(done.err)[WARM:])
    ends = {end: time[f"{end}_seconds"] / time["step_seconds"] * seconds for end in ("low", "high")}
    return {name: round(value, 5) for name, value in {"seconds": seconds, **ends}.items()}


def row_of(configuration: Configuration, before: dict[str, Any]) -> dict[str, Any]:
    """Errors of both predictions, where all that they take is there."""
    row = {**before, "name": configuration.name, "options": configuration.options}
    measured = row.get("measured")
    for way in (CATALOGUE, CALIBRATED):
        if measured and way in row:
            row[f"error_by_{way}"] = round(row[way]["seconds"] / measured - 1, 4)
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the sizes of errors, by each way."""
    found: dict[str, Any] = {}
    for way in (CATALOGUE, CALIBRATED):
        with_it = [row for row in rows if f"error_by_{way}" in row]
        errors = sorted(abs(row[f"error_by_{way}"]) for row in with_it)
        found[way] = {
            "compared": len(errors),
            "median_error": round(statistics.median(errors), 4) if errors else None,
            "worst_error": errors[-1] if errors else None,
            "within_the_range": sum(row[way]["low"] <= row["measured"] <= row[way]["high"] for row in with_it),
        }
    return found


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="configurations with it in their name")
    parser.add_argument(
        "--output", type=Path, default=WRITTEN, help="the file; tests/validation/results/gpu_time.json"
    )
    parser.add_argument("--gpu", default="H100", help="the catalogue's card to rehearse")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--measure-only", action="store_true")
    half.add_argument("--rehearse-only", action="store_true")
    args = parser.parse_args(given)
    document = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {}
    # What a machine measured before goes with its calibration then.
    before = {row["name"]: row for row in document.get("rows", [])} if args.rehearse_only else {}
    chosen = [one for one in CONFIGURATIONS if args.only in one.name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if not args.rehearse_only:
            document["gpu"] = asdict(gpu_of_this_machine())
            document["calibration"] = calibrated(folder)
            document["measured_with"] = {"date": datetime.date.today().isoformat(), "versions": versions()}
            for one in chosen:
                figures = measure(one, one.arguments(nvcc=False), folder, LIMIT_SECONDS)
                median = round(statistics.median(figures["step_seconds"][WARM:]), 5)
                before.setdefault(one.name, {})["measured"] = median
                print(f"{one.name}: {median} s measured", file=sys.stderr, flush=True)
        if not args.measure_only:
            ways = {CATALOGUE: ["--gpu", args.gpu]}
            if "calibration" in document:
                file = folder / "hardware.json"
                file.write_text(json.dumps(document["calibration"]), encoding="utf-8")
                ways[CALIBRATED] = ["--hardware", str(file)]
            document["rehearsed_with"] = {"date": datetime.date.today().isoformat(), "versions": versions()}
            for one in chosen:
                for way, hardware in ways.items():
                    before.setdefault(one.name, {})[way] = predicted(one, hardware, folder)
                print(f"{one.name}: {json.dumps(before[one.name])}", file=sys.stderr, flush=True)
    rows = [row_of(one, before[one.name]) for one in CONFIGURATIONS if one.name in before]
    document |= {"summary": summary(rows), "rows": rows}
    args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["summary"], indent=1))


if __name__ == "__main__":
    main()

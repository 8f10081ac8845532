"""Predict and measure steps: ``python -m tests.validation.calibration.whole_steps [--write]``.

``zerokit calibrate --device cpu`` measures the machine, its processor in the place of a card; none of the
steps that follow take part in it. Then each plan is run for real, two ranks over gloo with a thread each, and
rehearsed with that file. Compared is what the script itself prints of its steps in either. Nothing else
should run meanwhile. ``--plans 0 7`` takes some. With ``--write`` all goes into
results/whole_steps.json and the table of records/whole-steps.md.

A machine that others share is not equally fast all the time. So all of this is done three times, or as often
as ``--turns`` says, each time with a calibration of its own, and medians are compared: what disturbs one
calibration or one run disturbs neither side of the comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY, launch

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "whole_steps.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "whole-steps.md"
BEGIN, END = "<!-- whole steps -->\n", "<!-- /whole steps -->\n"
SCRIPT = REPOSITORY / "tests" / "validation" / "rehearsal" / "scripts" / "step_times.py"
RANKS = 2
TURNS = 3
"""Times that the machine is calibrated and all plans are run, by default."""
WARM = 3
"""Steps that do not count: ZeRO-3 records its order in the first ones, and prefetches by it later."""


KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc's: a process keeps what it has freed, as torch's allocator keeps a card's memory.

Otherwise it asks the system anew for the pages of large tensors in each step, which costs as much as the
elementwise kernels themselves.
"""


@dataclass(frozen=True)
class Plan:
    """A run."""

    hidden_size: int
    layers: int
    batch: int
    """Rows of a rank's micro-batch."""
    length: int
    """Tokens of a row."""
    stage: int
    offload: bool
    """Of the optimizer, to the host."""
    checkpointing: bool
    steps: int = WARM + 4

    @property
    def name(self) -> str:
        words = [f"{self.hidden_size} x {self.layers}", f"{self.batch} x {self.length}", f"ZeRO-{self.stage}"]
        return ", ".join(words + ["offload"] * self.offload + ["checkpointing"] * self.checkpointing)


def plans() -> Iterator[Plan]:
    """Three sizes, all stages, with and without offload and checkpointing, in two lengths."""
    kinds = [(stage, False, False) for stage in range(4)]
    kinds += [(1, True, False), (2, False, True), (3, True, False), (3, False, True)]
    for size, (hidden_size, layers, batch) in enumerate([(256, 4, 4), (512, 8, 2), (1024, 8, 1)]):
        for kind, (stage, offload, checkpointing) in enumerate(kinds):
            length = (128, 512)[(size + kind) % 2]
            yield Plan(hidden_size, layers, batch, length, stage, offload, checkpointing)


def calibrated(folder: Path, turn: int) -> Path:
    """What this machine takes now."""
    file = folder / f"machine{turn}.json"
    words = ["calibrate", "-o", file, "--device", "cpu", "--ranks", RANKS, "--threads", 1]
    env = os.environ | KEPT | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "zerokit", *map(str, words)]
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    return file


def predicted(plan: Path, hardware: Path, *, forked: bool = False) -> dict[str, Any]:
    """What the script prints in a rehearsal, and what the report says of its last step."""
    done = rehearse(
        *("--time", "--hardware", hardware, "--num-gpus", RANKS, "--steps", 0, "--no-advise"),
        *("--format", "json", "--gpu-memory", "1TiB", "--host-memory", "1TiB"),
        *(SCRIPT, plan.name),
        cwd=plan.parent,
        forked=forked,
    )
    time = done.report["time"]
    last = time["step_seconds"]
    return {
        "seconds": printed_seconds(done.err),
        "low": time["costs_low_seconds"] / last,
        "high": time["costs_high_seconds"] / last,
        "shares": {name: round(part / last, 3) for name, part in time["breakdown"].items()},
    }


def measured(plan: Path) -> list[float]:
    """What it prints on real ranks."""
    done = launch([SCRIPT, plan], ranks=RANKS, launcher="torchrun", env=KEPT)
    # Not by its exit code: a rank may abort as gloo's threads end, after all has been measured.
    if "seconds [" not in done.stdout:
        raise RuntimeError(done.stderr[-4000:])
    return printed_seconds(done.stdout)


def printed_seconds(text: str) -> list[float]:
    """Of each step, by a script's line ``seconds [...]``."""
    line = next(one for one in text.splitlines() if "seconds [" in one)
    seconds: list[float] = json.loads(line[line.index("[") :])
    return seconds


def turn_of(plan: Plan, hardware: Path) -> dict[str, Any]:
    """A plan's steps, measured, and rehearsed by one calibration, with medians over steps."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "plan.json")
        file.write_text(json.dumps(asdict(plan)), encoding="utf-8")
        theirs, ours = measured(file), predicted(file, hardware)
    medians = {"predicted": ours["seconds"], "measured": theirs}
    return ours | {name: statistics.median(seconds[WARM:]) for name, seconds in medians.items()}


def row_of(plan: Plan, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over a plan's turns; the range and the shares are those of the turn of the prediction."""
    medians = {name: statistics.median(turn[name] for turn in turns) for name in ("predicted", "measured")}
    middle = min(turns, key=lambda turn: abs(turn["predicted"] - medians["predicted"]))
    return {
        "plan": plan.name,
        **{name: round(value, 4) for name, value in medians.items()},
        "error": round(medians["predicted"] / medians["measured"] - 1, 4),
        **{end: round(middle[end] * medians["predicted"], 4) for end in ("low", "high")},
        "turns": [[round(turn["predicted"], 4), round(turn["measured"], 4)] for turn in turns],
        "shares": middle["shares"],
    }


def rows_of(chosen: list[Plan], num_turns: int) -> list[dict[str, Any]]:
    """Each plan's row."""
    turns: dict[Plan, list[dict[str, Any]]] = {plan: [] for plan in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(num_turns):
            hardware = calibrated(Path(folder), turn)
            for plan, before in turns.items():
                before.append(turn_of(plan, hardware))
                print(f"{turn + 1} of {num_turns}: {json.dumps(row_of(plan, before))}", file=sys.stderr)
    return [row_of(plan, all_of_it) for plan, all_of_it in turns.items()]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the sizes of all errors."""
    errors = sorted(abs(row["error"]) for row in rows)
    return {
        "runs": len(rows),
        "median_error": round(statistics.median(errors), 4),
        "worst_error": errors[-1],
        "within_the_range": sum(row["low"] <= row["measured"] <= row["high"] for row in rows),
    }


def table(recorded: dict[str, Any]) -> str:
    """For the page."""
    lines = ["| hidden size x layers, rows x tokens | predicted | measured | error |", "|---|---|---|---|"]
    lines += [
        f"| {row['plan']} | {row['predicted']:.2f} s | {row['measured']:.2f} s | {row['error']:+.0%} |"
        for row in recorded["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--write", action="store_true")
    some.add_argument("--plans", type=int, nargs="+", metavar="PLACE", help="some of them, not to be written")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="NUMBER")
    options = parser.parse_args()
    known = list(plans())
    rows = rows_of([known[place] for place in options.plans or range(len(known))], options.turns)
    command = f"python -m tests.validation.calibration.whole_steps --turns {options.turns} --write"
    result = {"command": command, **summary(rows), "rows": rows}
    print(json.dumps(result, indent=1))
    if options.write:
        WRITTEN.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}{table(result)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Steps of this machine, predicted and measured: ``python -m tests.calibration.whole_steps [--write]``.

``zerokit calibrate --device cpu`` measures the machine, its processor in the place of a card; none of the
steps that follow take part in it. Then each plan is run for real, two ranks over gloo with a thread each, and
rehearsed with that file. Compared is what the script itself prints of its steps in either. Nothing else
should run meanwhile. ``--plans 0 7`` takes some. With ``--write`` all goes into
docs/measured/whole_steps.json and the table of docs/time.md.

A machine that others share is not equally fast all the time. So a fixed piece of work is timed beside the
calibration, and before and after each run (`tests.calibration.pace`): where the machine has become faster or
slower since, it is calibrated anew, and the plan run again, whatever its steps took.
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

from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY, launch

WRITTEN = REPOSITORY / "docs" / "measured" / "whole_steps.json"
PAGE = REPOSITORY / "docs" / "time.md"
BEGIN, END = "<!-- whole steps -->\n", "<!-- /whole steps -->\n"
SCRIPT = SCRIPTS / "step_times.py"
PACE = Path(__file__).with_name("pace.py")
RANKS = 2
SAME = 0.1
"""By so much may a kind of work take more or less than when the machine was calibrated."""
MOST_TRIES = 8
"""Of one plan."""
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


@dataclass(frozen=True)
class Machine:
    """As it was at one time."""

    file: Path
    pace: list[float]
    """Seconds of the fixed work, by its kinds."""

    def change(self) -> float:
        """Of the kind of work whose seconds have changed most since then, relative."""
        return max((now / then - 1 for now, then in zip(pace(), self.pace, strict=True)), key=abs)


def pace() -> list[float]:
    """Of this machine, now."""
    return _printed(launch([PACE], ranks=RANKS, launcher="torchrun", env=KEPT).stdout)


def calibrated(file: Path) -> Machine:
    """This machine as it is now."""
    words = ["calibrate", "--force", "-o", file, "--device", "cpu", "--ranks", RANKS, "--threads", 1]
    env = os.environ | KEPT | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "zerokit", *map(str, words)], check=True, env=env)
    return Machine(file, pace())


def predicted(plan: Path, hardware: Path) -> dict[str, Any]:
    """What the script prints in a rehearsal, and what the report says of its last step."""
    done = rehearse(
        *("--time", "--hardware", hardware, "--num-gpus", RANKS, "--steps", 0, "--no-advise"),
        *("--format", "json", "--gpu-memory", "1TiB", "--host-memory", "1TiB"),
        *(SCRIPT, plan.name),
        cwd=plan.parent,
    )
    time = done.report["time"]
    last = time["step_seconds"]
    return {
        "seconds": _printed(done.err),
        "low": time["low_seconds"] / last,
        "high": time["high_seconds"] / last,
        "shares": {name: round(part / last, 3) for name, part in time["breakdown"].items()},
    }


def measured(plan: Path) -> list[float]:
    """What it prints on real ranks."""
    done = launch([SCRIPT, plan], ranks=RANKS, launcher="torchrun", env=KEPT)
    # Not by its exit code: a rank may abort as gloo's threads end, after all has been measured.
    if "seconds [" not in done.stdout:
        raise RuntimeError(done.stderr[-4000:])
    return _printed(done.stdout)


def _printed(text: str) -> list[float]:
    line = next(one for one in text.splitlines() if "seconds [" in one)
    seconds: list[float] = json.loads(line[line.index("[") :])
    return seconds


def compared(plan: Plan, machine: Machine) -> dict[str, Any] | None:
    """A plan's row; None if the machine is no longer as it was calibrated."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "plan.json")
        file.write_text(json.dumps(asdict(plan)), encoding="utf-8")
        before, theirs, after = machine.change(), measured(file), machine.change()
        print(f"{plan.name}: the machine's pace changed by {before:+.0%} and {after:+.0%}", file=sys.stderr)
        if max(abs(before), abs(after)) > SAME:
            return None
        ours = predicted(file, machine.file)
    seconds = {"predicted": ours["seconds"][WARM:], "measured": theirs[WARM:]}
    medians = {name: statistics.median(steps) for name, steps in seconds.items()}
    return {
        "plan": plan.name,
        **{name: round(value, 4) for name, value in medians.items()},
        "error": round(medians["predicted"] / medians["measured"] - 1, 4),
        "low": round(ours["low"] * medians["predicted"], 4),
        "high": round(ours["high"] * medians["predicted"], 4),
        "measured_steps": [round(one, 4) for one in seconds["measured"]],
        "pace": [round(before, 3), round(after, 3)],
        "shares": ours["shares"],
    }


def rows_of(chosen: list[Plan]) -> Iterator[dict[str, Any]]:
    """Each plan's row, with as many calibrations as the machine asks for."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "machine.json")
        machine = calibrated(file)
        for plan in chosen:
            for _ in range(MOST_TRIES):
                if row := compared(plan, machine):
                    yield row
                    break
                machine = calibrated(file)
            else:
                raise SystemExit(f"{plan.name}: the machine is not equally fast for long enough")


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
    options = parser.parse_args()
    known = list(plans())
    rows = []
    for row in rows_of([known[place] for place in options.plans or range(len(known))]):
        rows.append(row)
        print(json.dumps(row), flush=True)
    result = {"command": "python -m tests.calibration.whole_steps --write", **summary(rows), "rows": rows}
    print(json.dumps(summary(rows)))
    if options.write:
        WRITTEN.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}{table(result)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

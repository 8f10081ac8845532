"""Training goes on from a resharded checkpoint with the losses of a run that was never interrupted.

``python -m tests.validation.checkpoint.reshard --write`` trains 20 steps on 2 ranks, makes of each
checkpoint those of 1 and of 3, goes on with 20 steps, and compares with 40 steps on as many, of the same
examples in one order; for stages 1 to 3, with and without optimizer offload, in fp32. It puts the figures
into results/reshard.json and records/checkpoints.md. tests/launched/test_checkpoints.py goes on likewise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, launch
from zerokit.checkpoint.reshard import reshard

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "reshard.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "checkpoints.md"
BEGIN, END = "<!-- resharded -->\n", "<!-- /resharded -->\n"
COMMAND = "python -m tests.validation.checkpoint.reshard --write"
STEPS = 20
ROWS = 6
"""Examples of a step, on all ranks together."""
SAVED_BY = 2
RANKS = (1, 3)
CELLS: dict[str, dict[str, Any]] = {
    f"stage{stage}{'-offload' if offload else ''}": {
        "stage": stage,
        "precision": None,
        "lr": 1e-3,
        **({"offload_optimizer": {"device": "cpu"}} if offload else {}),
    }
    for stage in (1, 2, 3)
    for offload in (False, True)
}


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """Train all cells; what each showed."""
    _run(folder, SAVED_BY, "begin")
    for ranks in RANKS:
        for name in CELLS:
            reshard(folder / name, folder / f"{name}-{ranks}", num_ranks=ranks)
        _run(folder, ranks, "go-on")
        for name, run in CELLS.items():
            whole, resumed = json.loads((folder / f"{name}-{ranks}.json").read_text())
            assert len(whole) == len(resumed) == STEPS
            yield {
                "stage": run["stage"],
                "offload": "offload_optimizer" in run,
                "ranks": ranks,
                "first_loss": whole[0],
                "last_loss": whole[-1],
                "largest_difference": max(abs(a - b) for a, b in zip(whole, resumed, strict=True)),
            }


def _run(folder: Path, ranks: int, action: str) -> None:
    script = REPOSITORY / "tests/validation/launched/reshard_cells.py"
    env = {"PYTHONPATH": str(REPOSITORY)}
    done = launch([script, folder, action], ranks=ranks, launcher="none", env=env)
    assert done.returncode == 0, done.stderr


def table(rows: list[dict[str, Any]]) -> str:
    """Of the documentation."""
    lines = ["| stage | optimizer | ranks | loss of step 21 and 40 | largest difference |", "|---|---|---|---|---|"]
    for row in rows:
        where = "on the host" if row["offload"] else "on the device"
        losses = f"{row['first_loss']:.4f}, {row['last_loss']:.4f}"
        lines.append(
            f"| {row['stage']} | {where} | {SAVED_BY} to {row['ranks']} | {losses} | {row['largest_difference']:.1e} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(Path(folder)))
    print(table(rows))
    if asked.write:
        WRITTEN.write_text(json.dumps({"command": COMMAND, "steps": STEPS, "cells": rows}, indent=1) + "\n")
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()

"""Rehearsing two or three steps of large models, next to importing torch and transformers: ``make bench``.

Each run is one rank's worker, as `zerokit rehearse` starts it, on `rehearsal_scripts/train_config.py`. The
time is the process's own, from start to report, with all that it imports.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.validation.benchmarks.cost import Cost, cost_of, print_ratios
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.native.build import built_library
from zerokit.rehearsal.recording import Recording

SCRIPT = Path(__file__).resolve().with_name("rehearsal_scripts") / "train_config.py"
STEPS = 2
RUNS = 2
LIBRARIES, IMPORTS = "import torch, transformers", "the script's imports, rehearsed"
ONLY_IMPORTS = """
import os, runpy, sys
from zerokit.rehearsal import virtual_cluster
with virtual_cluster(8):
    runpy.run_path(sys.argv[1], run_name="imports")
    os._exit(0)
"""


@dataclass(frozen=True)
class Case:
    """A run."""

    name: str
    num_gpus: int
    arguments: tuple[str, ...]
    steps: int = STEPS
    timed: bool = False
    """Whether time is rehearsed, too."""


_THREE = ("llama-3.1-8b", "--stage", "3", "--steps", "3")
CASES = (
    Case("Llama-3.1-8B on 8, ZeRO-2", 8, ("llama-3.1-8b", "--stage", "2")),
    Case("Llama-3.1-8B on 8, ZeRO-3, 3 steps", 8, _THREE, steps=3),
    Case("the same with --time", 8, _THREE, steps=3, timed=True),
    Case("Llama-3.1-70B on 64, ZeRO-3", 64, ("llama-3.1-70b", "--stage", "3")),
    Case("Llama-3.1-405B on 512, ZeRO-3, offload", 512, ("llama-3.1-405b", "--stage", "3", "--offload")),
    Case("DeepSeek-V3 on 256, ZeRO-3", 256, ("deepseek-v3", "--stage", "3")),
    # The same model on more ranks: no more time.
    Case("Llama-3.1-70B on 4096, ZeRO-3", 4096, ("llama-3.1-70b", "--stage", "3")),
)


def rehearse(case: Case, folder: Path) -> Cost:
    """Rehearse rank 0 of `case`.

    Raises:
        SystemExit: the rehearsal fails, or ends before its steps are done.
    """
    job = RehearsalJob(
        script=str(SCRIPT),
        arguments=list(case.arguments),
        num_gpus=case.num_gpus,
        gpus_per_node=8,
        rank=0,
        steps=case.steps,
        timed_on=find_gpu("H100") if case.timed else None,
        cwd=str(folder),
        recording_file=str(folder / "rank-0.npz"),
    )
    job_file = folder / "job.json"
    job_file.write_text(job.to_json(), encoding="utf-8")
    cost = cost_of([sys.executable, "-m", "zerokit.rehearsal.worker.run", str(job_file)])
    steps = Recording.load(job.recording_file).completed_steps
    if steps != case.steps:
        sys.exit(f"{case.name}: {steps} steps were rehearsed instead of {case.steps}")
    return cost


def main() -> None:
    """Print a table of all cases."""
    built_library()  # once for each torch, and not part of a rehearsal
    costs: dict[str, list[Cost]] = {name: [] for name in (LIBRARIES, IMPORTS, *(case.name for case in CASES))}
    with tempfile.TemporaryDirectory() as folder:
        # In turn, so that a busy minute of the machine falls on all of them.
        for _ in range(RUNS):
            costs[LIBRARIES].append(cost_of([sys.executable, "-c", LIBRARIES]))
            costs[IMPORTS].append(cost_of([sys.executable, "-c", ONLY_IMPORTS, str(SCRIPT)]))
            for case in CASES:
                costs[case.name].append(rehearse(case, Path(folder)))
    print_ratios(costs, LIBRARIES)


if __name__ == "__main__":
    main()

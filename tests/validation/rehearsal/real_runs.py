"""Real runs against their rehearsals: scripts/matrix.py with real tensors on two ranks, and again with none.

Both go through the same worker, watcher and report. `python -m tests.validation.rehearsal.real_runs --write`
runs every combination and writes results/real_runs.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

from tests.rehearsal import forked_worker
from tests.rehearsal.recordings import device_with
from tests.tiny import REPOSITORY
from zerokit.distributed.ranks import free_port
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.native.build import built_library
from zerokit.rehearsal.parent import processes
from zerokit.rehearsal.parent.processes import Output, Worker
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import RehearsalReport

SCRIPT = REPOSITORY / "tests" / "validation" / "rehearsal" / "scripts" / "matrix.py"
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "real_runs.json"
NUM_RANKS = 2
STEPS = 2
DEVICE = device_with(80 * 2**30)


@dataclass(frozen=True)
class Combination:
    """One setting of scripts/matrix.py; the fields are its options."""

    stage: int
    precision: str = "bf16"
    offload_optimizer: str | None = None
    offload_param: str | None = None
    pin_memory: bool = False
    accumulation: int = 1
    checkpointing: bool = False
    lora: bool = False
    optimizer: str = "fused"
    overlap_comm: bool = False

    @property
    def name(self) -> str:
        """Says what is not as by default, for test ids and the table."""
        parts = [f"zero{self.stage}", self.precision]
        for what, device in (("optimizer", self.offload_optimizer), ("param", self.offload_param)):
            if device:
                parts.append(f"{what}_on_{device}")
        parts += [f"accumulation{self.accumulation}"] if self.accumulation > 1 else []
        parts += ["torch_adamw"] if self.optimizer == "torch" else []
        flags = ("pin_memory", "checkpointing", "lora", "overlap_comm")
        return "-".join(parts + [flag for flag in flags if getattr(self, flag)])

    def arguments(self) -> list[str]:
        """The command line of scripts/matrix.py."""
        words: list[str] = []
        for field, value in asdict(self).items():
            option = "--" + field.replace("_", "-")
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
        return words


QUICK = (
    Combination(1, "fp16", checkpointing=True, overlap_comm=True),
    Combination(2, offload_optimizer="cpu", pin_memory=True, accumulation=4, lora=True, checkpointing=True),
    Combination(3, lora=True, offload_optimizer="nvme", offload_param="nvme", pin_memory=True),
)
"""Those that `make test` runs: each stage that divides something, and each place to keep it, once."""

ALL = (
    Combination(0, accumulation=4),
    QUICK[0],
    Combination(2, "fp32", optimizer="torch"),
    QUICK[1],
    Combination(2, "fp16", offload_optimizer="cpu"),
    Combination(3, overlap_comm=True, accumulation=4),
    Combination(3, offload_optimizer="cpu", offload_param="cpu", pin_memory=True, checkpointing=True),
    QUICK[2],
    Combination(0, "fp32"),
    Combination(0, "fp16", checkpointing=True),
    Combination(0, lora=True, optimizer="torch"),
    Combination(1),
    Combination(1, "fp32", checkpointing=True),
    Combination(1, offload_optimizer="cpu", pin_memory=True, accumulation=4),
    Combination(1, lora=True, optimizer="torch", accumulation=4),
    Combination(2),
    Combination(2, accumulation=4, overlap_comm=True, checkpointing=True),
    Combination(2, "fp16", optimizer="torch"),
    Combination(2, "fp32", offload_optimizer="cpu", accumulation=4),
    Combination(2, offload_optimizer="cpu", overlap_comm=True, optimizer="torch"),
    Combination(2, lora=True, checkpointing=True),
    Combination(3),
    Combination(3, "fp32", checkpointing=True, overlap_comm=True),
    Combination(3, "fp16", checkpointing=True, accumulation=4),
    Combination(3, optimizer="torch", accumulation=4),
    Combination(3, offload_optimizer="cpu", overlap_comm=True),
    Combination(3, "fp16", offload_optimizer="cpu", offload_param="cpu", accumulation=4),
    Combination(3, "fp32", offload_optimizer="cpu", pin_memory=True),
    Combination(3, lora=True, checkpointing=True, overlap_comm=True),
    Combination(3, lora=True, offload_param="cpu", offload_optimizer="cpu", accumulation=4),
    Combination(3, offload_optimizer="nvme", pin_memory=True),
    Combination(3, offload_optimizer="nvme", offload_param="nvme", accumulation=4, checkpointing=True),
)


def figures(report: RehearsalReport) -> dict[str, int]:
    """What is compared, in bytes of one rank: most held, and held after the last step."""
    device, host = report.device, report.host
    return {
        "device_peak": device.peak_bytes,
        "device_steady": device.steady_bytes,
        "host_peak": host.peak_bytes,
        "host_steady": host.steady_bytes,
        "pinned_peak": host.pinned_bytes,
        "pinned_steady": host.pinned_steady_bytes,
        **{f"device_peak_in_{phase}": most for phase, most in device.by_phase.items()},
    }


def deviations(rehearsed: dict[str, int], real: dict[str, int]) -> dict[str, float]:
    """By how much of the real figure each rehearsed one is beside it, signed."""
    found = {}
    for name in sorted(real.keys() | rehearsed.keys()):
        value, truth = rehearsed.get(name, 0), real.get(name, 0)
        found[name] = (value - truth) / truth if truth else float("inf") if value else 0.0
    return found


@dataclass(frozen=True)
class Pair:
    """A real run and its rehearsal, each by rank."""

    real: list[RehearsalReport]
    rehearsed: list[RehearsalReport]
    losses: list[list[float]]
    """Of each rank's real micro-batches."""

    def deviations(self) -> list[dict[str, float]]:
        """By rank."""
        return [
            deviations(figures(rehearsed), figures(real))
            for real, rehearsed in zip(self.real, self.rehearsed, strict=True)
        ]

    @property
    def worst(self) -> float:
        """The largest deviation, without its sign."""
        return max(abs(value) for rank in self.deviations() for value in rank.values())


def run(
    arguments: Sequence[str],
    values: Literal["none", "real"],
    folder: Path,
    *,
    steps: int = STEPS,
    forked: bool = False,
) -> tuple[list[RehearsalReport], list[list[float]]]:
    """Run scripts/matrix.py on two ranks, really or rehearsed.

    Args:
        arguments: options of the script.
        values: "real" for two ranks that talk to each other.
        folder: takes the recordings, what the script prints, and NVMe files.
        steps: optimizer steps.
        forked: whether workers are forked: see :mod:`tests.rehearsal.forked_worker`.

    Returns:
        Report and losses of each rank.

    Raises:
        zerokit.errors.ZerokitError: a rank fails.
    """
    files = [folder / f"{values}-losses-{rank}.txt" for rank in range(NUM_RANKS)]
    jobs = [
        RehearsalJob(
            script=str(SCRIPT),
            arguments=[
                *arguments,
                *("--steps", str(steps), "--losses", str(file), "--nvme-path", str(folder / f"nvme-{values}")),
            ],
            num_gpus=NUM_RANKS,
            gpus_per_node=NUM_RANKS,
            rank=rank,
            steps=steps,
            device=DEVICE,
            cwd=str(folder),
            recording_file=str(folder / f"{values}-{rank}.npz"),
        )
        for rank, file in enumerate(files)
    ]
    built_library()  # which may take minutes, and is nobody's fault
    with environment(forked=forked), ExitStack() as stack:
        if values == "real":
            worker = "tests.validation.rehearsal.real_worker"
            stack.enter_context(mock.patch.object(processes, "WORKER", worker))
        workers = [stack.enter_context(Worker(job, Output.SHOWN_IF_IT_FAILS)) for job in jobs]
        reports = [analyse(worker.result(None), worker.job) for worker in workers]
    return reports, [[float(line) for line in file.read_text().splitlines()] for file in files]


@contextmanager
def environment(*, forked: bool = False) -> Iterator[None]:
    """Where the ranks meet, and one thread each; for the processes that are started inside."""
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),  # of the worker whose ranks talk
    }
    worker = processes.WORKER
    if forked:
        variables[forked_worker.SOCKET] = forked_worker.server()
        worker = forked_worker.__name__
    with mock.patch.dict(os.environ, variables), mock.patch.object(processes, "WORKER", worker):
        yield


def compare(combination: Combination, folder: Path, *, forked: bool = False) -> Pair:
    """Run `combination` really and rehearsed; the rest as for :func:`run`."""
    real, losses = run(combination.arguments(), "real", folder, forked=forked)
    rehearsed, _ = run(combination.arguments(), "none", folder, forked=forked)
    return Pair(real, rehearsed, losses)


def _row(combination: Combination, pair: Pair) -> dict[str, object]:
    return {
        "name": combination.name,
        "settings": asdict(combination),
        "ranks": [
            {
                "rank": real.rank,
                "real": figures(real),
                "rehearsed": figures(rehearsed),
                "same_traffic": real.communication == rehearsed.communication,
            }
            for real, rehearsed in zip(pair.real, pair.rehearsed, strict=True)
        ],
        "losses_of_rank_0": [round(loss, 5) for loss in pair.losses[0]],
        "worst_deviation_percent": round(100 * pair.worst, 4),
    }


def main() -> None:
    """Run combinations and print, or write, the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {WRITTEN.relative_to(REPOSITORY)}")
    parser.add_argument("--only", default="", help="combinations whose name contains this")
    options = parser.parse_args()
    rows = []
    for combination in ALL:
        if options.only not in combination.name:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            pair = compare(combination, Path(folder))
        row = _row(combination, pair)
        rows.append(row)
        print(f"{100 * pair.worst:8.4f} %  {time.perf_counter() - began:5.1f} s  {combination.name}", flush=True)
        if pair.worst:
            print(json.dumps(row["ranks"], indent=1), flush=True)
    if options.write:
        document = {
            "what": "Bytes held on two ranks: real tensors over gloo, against a rehearsal of the same script",
            "script": str(SCRIPT.relative_to(REPOSITORY)),
            "unit": "bytes",
            "date": datetime.date.today().isoformat(),
            "versions": {"python": platform.python_version(), **pair.real[0].run.versions},
            "worst_deviation_percent": max(row["worst_deviation_percent"] for row in rows),  # type: ignore[type-var]
            "combinations": rows,
        }
        WRITTEN.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

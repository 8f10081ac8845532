"""Real runs of every role against their rehearsals: a pipeline, and tensor, sequence and expert parallelism.

The real ranks are as many processes with real tensors; rehearsed is one of each role, as for a person.
`python -m tests.validation.rehearsal.role_runs --write` runs all and writes results/role_runs.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.tiny import REPOSITORY
from tests.validation.rehearsal.real_runs import DEVICE, deviations, environment, figures
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.native.build import built_library
from zerokit.rehearsal.parent import processes
from zerokit.rehearsal.parent.processes import Output, Worker
from zerokit.rehearsal.parent.start import rehearse_roles
from zerokit.rehearsal.ranks.roles import Roles
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import RehearsalReport

REAL_WORKER = "tests.validation.rehearsal.real_worker"
SCRIPTS = REPOSITORY / "tests" / "rehearsal" / "scripts"
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "role_runs.json"
STEPS = 2


@dataclass(frozen=True)
class RoleRun:
    """One script on so many ranks."""

    script: str
    num_ranks: int
    arguments: tuple[str, ...]
    expandable: bool = False
    """Whether segments of the allocator are: their blocks are all cut to size. Of others what is left below
    1 MiB stays with the block, and which blocks are free depends on where ZeRO cuts through tensors."""

    @property
    def name(self) -> str:
        words = [self.script.removesuffix(".py"), str(self.num_ranks), *self.arguments[1:]]
        return "-".join([*words, *(["expandable"] if self.expandable else [])])

    @contextmanager
    def environment(self, *, forked: bool) -> Iterator[None]:
        """For the processes that are started inside."""
        settings = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if self.expandable else {}
        with environment(forked=forked), mock.patch.dict(os.environ, settings):
            yield

    def job(self, folder: Path, rank: int = 0, **changes: Any) -> RehearsalJob:
        """The job of one rank, whose files go to `folder`."""
        return RehearsalJob(
            script=str(SCRIPTS / self.script),
            arguments=list(self.arguments),
            num_gpus=self.num_ranks,
            gpus_per_node=self.num_ranks,
            rank=rank,
            steps=STEPS,
            device=DEVICE,
            cwd=str(folder),
            recording_file=str(folder / f"rank-{rank}.npz"),
            **changes,
        )


QUICK = RoleRun("pipeline.py", 2, ("--stages", "2"))
"""What `make test` runs."""
ALL = (
    QUICK,
    RoleRun("pipeline.py", 4, ("--stages", "4")),
    RoleRun("pipeline.py", 4, ("--stages", "2")),
    RoleRun("pipeline.py", 8, ("--stages", "4")),
    RoleRun("pipeline.py", 8, ("--stages", "4"), expandable=True),
    *(
        RoleRun(f"{kind}_parallel.py", num_ranks, ("--size", str(num_ranks)))
        for kind in ("tensor", "sequence", "expert")
        for num_ranks in (2, 4, 8)
    ),
    *(
        RoleRun(f"{kind}_parallel.py", num_ranks, ("--size", "2", "--stage", "3"))
        for kind in ("tensor", "sequence")
        for num_ranks in (2, 4)
    ),
)


def run_really(run: RoleRun, folder: Path, *, forked: bool = False) -> list[RehearsalReport]:
    """The reports of all ranks of a real run."""
    folder.mkdir()
    built_library()
    with run.environment(forked=forked), ExitStack() as stack:
        stack.enter_context(mock.patch.object(processes, "WORKER", REAL_WORKER))
        workers = [
            stack.enter_context(Worker(run.job(folder, rank), Output.SHOWN_IF_IT_FAILS))
            for rank in range(run.num_ranks)
        ]
        return [analyse(worker.result(None), worker.job) for worker in workers]


def rehearse(run: RoleRun, folder: Path, *, forked: bool = False) -> tuple[dict[int, RehearsalReport], Roles]:
    """Reports of the ranks that are rehearsed, and the roles of all."""
    folder.mkdir()
    with run.environment(forked=forked):
        exchange = folder / "exchange"
        exchange.mkdir()
        job = run.job(folder, exchange_folder=str(exchange))
        found = rehearse_roles(job, output=Output.SHOWN_ON_STDERR)
    assert found.roles is not None
    reports = {rank: analyse(recording, job.of_rank(rank)) for rank, recording in found.recordings.items()}
    return reports, found.roles


def compare(run: RoleRun, folder: Path, *, forked: bool = False) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each real rank, beside the rehearsed one that stands for it; and versions of packages.

    Args:
        run: what to run.
        folder: takes what it writes.
        forked: whether workers are forked: see :mod:`tests.rehearsal.forked_worker`.
    """
    real = run_really(run, folder / "real", forked=forked)
    rehearsed, roles = rehearse(run, folder / "rehearsed", forked=forked)
    rows = []
    for rank, report in enumerate(real):
        stands_for_it = roles.stands_for(rank)
        found = figures(rehearsed[stands_for_it])
        rows.append(
            {
                "rank": rank,
                "role": roles.names[roles.of_rank[rank]],
                "rehearsed_rank": stands_for_it,
                "real": figures(report),
                "rehearsed": found,
                "same_traffic": report.communication == rehearsed[stands_for_it].communication,
                "worst_deviation_percent": round(100 * max(map(abs, deviations(found, figures(report)).values())), 4),
            }
        )
    return rows, real[0].run.versions


def main() -> None:
    """Run all and print, or write, the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {WRITTEN.relative_to(REPOSITORY)}")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    options = parser.parse_args()
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    known = {run["name"]: run for run in written["runs"]}
    versions = {"python": platform.python_version()}
    for run in ALL:
        if options.only not in run.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows, found = compare(run, Path(folder))
        versions |= found
        worst = max(row["worst_deviation_percent"] for row in rows)
        print(f"{worst:8.4f} %  {run.name}", flush=True)
        known[run.name] = {"name": run.name, "arguments": run.arguments, "ranks": rows}
        if options.write:
            runs = [known[one.name] for one in ALL if one.name in known]
            WRITTEN.write_text(json.dumps(document(runs, versions), indent=1) + "\n", encoding="utf-8")


def document(runs: list[dict[str, Any]], versions: dict[str, str]) -> dict[str, Any]:
    """What is written down of `runs`, the last of them of today and with packages of `versions`."""
    return {
        "what": "Bytes held by every rank: real tensors over gloo, against one rehearsed rank of each role",
        "unit": "bytes",
        "date": datetime.date.today().isoformat(),
        "versions": versions,
        "runs": runs,
    } | {
        f"worst_deviation_percent_of_ranks_{name}": max(
            (
                row["worst_deviation_percent"]
                for run in runs
                for row in run["ranks"]
                if (row["rank"] == row["rehearsed_rank"]) == is_rehearsed
            ),
            default=0.0,
        )
        for name, is_rehearsed in (("rehearsed", True), ("stood_for", False))
    }


if __name__ == "__main__":
    main()

"""CPU seconds and resident memory of rehearsing two optimizer steps of large models: ``make bench``.

Each run is one rank's worker, as `zerokit rehearse` starts it, on `rehearsal_scripts/train_config.py`. The
time is the process's own, user and system, of all threads, from start to report, less that of a process that
only loads the virtual device and imports what the script imports; what is imported later counts. Exit code 1
if a limit is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.native.build import built_library

SCRIPT = Path(__file__).resolve().with_name("rehearsal_scripts") / "train_config.py"
STEPS = 2
RUNS = 2
"""The fastest counts: whatever else runs on the machine only adds."""
RESIDENT_LIMIT_GIB = 2.0
ONLY_IMPORTS = """
import os, runpy, sys
from zerokit.rehearsal import virtual_cluster
with virtual_cluster(8):
    runpy.run_path(sys.argv[1], run_name="imports")
    os._exit(0)
"""


@dataclass(frozen=True)
class Case:
    """A run and its limit in seconds."""

    name: str
    num_gpus: int
    arguments: tuple[str, ...]
    limit: float


CASES = (
    Case("Llama-3.1-8B on 8, ZeRO-2", 8, ("llama-3.1-8b", "--stage", "2"), 3),
    Case("Llama-3.1-70B on 64, ZeRO-3", 64, ("llama-3.1-70b", "--stage", "3"), 8),
    Case("Llama-3.1-405B on 512, ZeRO-3, offload", 512, ("llama-3.1-405b", "--stage", "3", "--offload"), 30),
    Case("DeepSeek-V3 on 256, ZeRO-3", 256, ("deepseek-v3", "--stage", "3"), 120),
    # The same model on more ranks: no more time.
    Case("Llama-3.1-70B on 4096, ZeRO-3", 4096, ("llama-3.1-70b", "--stage", "3"), 8),
)


@dataclass(frozen=True)
class Cost:
    """What a process took."""

    cpu_seconds: float
    resident_gib: float


def cost_of(command: list[str]) -> Cost:
    """Run `command` to its end.

    Raises:
        SystemExit: it fails.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            sys.exit(f"{' '.join(command)}\n{output.read().decode()[-3000:]}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)


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
        steps=STEPS,
        gpu_memory_bytes=80 * 2**30,
        cwd=str(folder),
        report_file=str(folder / "report.json"),
    )
    job_file = folder / "job.json"
    job_file.write_text(job.model_dump_json(), encoding="utf-8")
    cost = cost_of([sys.executable, "-m", "zerokit.rehearsal.worker", str(job_file)])
    report = json.loads(Path(job.report_file).read_text(encoding="utf-8"))
    if report["steps"] != STEPS:
        sys.exit(f"{case.name}: {report['steps']} steps were rehearsed instead of {STEPS}")
    return cost


def main() -> None:
    """Print a table of all cases."""
    built_library()  # once for each torch, and not part of a rehearsal
    imports: list[float] = []
    costs: dict[Case, list[Cost]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        # In turn, so that a busy minute of the machine falls on all of them.
        for _ in range(RUNS):
            for case in CASES:
                imports.append(cost_of([sys.executable, "-c", ONLY_IMPORTS, str(SCRIPT)]).cpu_seconds)
                costs[case].append(rehearse(case, Path(folder)))
    print(f"imports alone: {min(imports):.2f} s CPU")
    outcomes = [print_line(case, costs[case], min(imports)) for case in CASES]
    sys.exit(0 if all(outcomes) else 1)


def print_line(case: Case, costs: list[Cost], imports: float) -> bool:
    """One line of the table; whether the limits are kept."""
    seconds = min(cost.cpu_seconds for cost in costs) - imports
    resident = max(cost.resident_gib for cost in costs)
    kept = seconds <= case.limit and resident <= RESIDENT_LIMIT_GIB
    print(
        f"{case.name:40} {seconds:6.2f} s CPU (limit {case.limit:3.0f})   "
        f"{resident:.2f} GiB resident (limit {RESIDENT_LIMIT_GIB:.0f})   {'ok' if kept else 'MISSED'}"
    )
    return kept


if __name__ == "__main__":
    main()

"""Rehearsals that share their imports: one process sets a virtual cluster up, and forks for each run.

`python -m tests.rehearsal.feature_runs` is that process: it reads a run from each line of stdin and answers
with its exit code. A run that has to start anew goes through zerokit.rehearsal.parent.processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.rehearsal.recordings import device_with
from tests.tiny import REPOSITORY
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.recording import Recording
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import RehearsalReport

SCRIPTS = REPOSITORY / "tests" / "rehearsal" / "scripts"
NUM_GPUS = 8
GPUS_PER_NODE = 4
DEVICE = device_with(80 * 2**30)


class FeatureRuns:
    """Rehearses scripts on rank 0 of two nodes with four GPUs each. As a context manager it ends its process.

    Args:
        folder: takes recordings and logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results: dict[tuple[str, tuple[str, ...]], tuple[RehearsalReport, str]] = {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rehearsal.feature_runs"],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> FeatureRuns:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, script: str, *arguments: str) -> RehearsalReport:
        """The report of `scripts/<script>`, which runs to its own end; at most once with the same arguments.

        Raises:
            AssertionError: the script fails; the message is what it printed.
            RuntimeError: so did the process of the runs.
        """
        return self._done(script, arguments)[0]

    def printed(self, script: str, *arguments: str) -> str:
        """What that run printed."""
        return self._done(script, arguments)[1]

    def _done(self, script: str, arguments: tuple[str, ...]) -> tuple[RehearsalReport, str]:
        if (script, arguments) not in self._results:
            self._results[script, arguments] = self._run(script, arguments)
        return self._results[script, arguments]

    def _run(self, script: str, arguments: tuple[str, ...]) -> tuple[RehearsalReport, str]:
        place = self._folder / f"{len(list(self._folder.iterdir()))}.npz"
        job = job_of(script, arguments, place)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(job.to_json() + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process of the runs has ended; stderr says why")
        printed = place.with_suffix(".log").read_text(errors="replace")
        assert answer.strip() == "0", f"{script} {' '.join(arguments)}: exit code {answer}\n{printed[-6000:]}"
        return analyse(Recording.load(place), job), printed


def job_of(script: str, arguments: tuple[str, ...], recording: Path, steps: int = 100) -> RehearsalJob:
    """A run of `scripts/<script>` in the cluster of these tests."""
    return RehearsalJob(
        script=str(SCRIPTS / script),
        arguments=list(arguments),
        num_gpus=NUM_GPUS,
        gpus_per_node=GPUS_PER_NODE,
        rank=0,
        steps=steps,
        device=DEVICE,
        cwd=str(recording.parent),
        recording_file=str(recording),
    )


def main() -> None:
    """Answer the runs on stdin until it ends."""
    from zerokit.rehearsal import virtual_cluster
    from zerokit.rehearsal.worker.run import run_in

    leave = os._exit  # which a rehearsed script is kept from
    # What the imports print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with virtual_cluster(NUM_GPUS, gpus_per_node=GPUS_PER_NODE, device=DEVICE) as rank:
        import deepspeed  # noqa: F401
        import peft  # noqa: F401
        import transformers  # noqa: F401
        from transformers import LlamaForCausalLM, Trainer  # noqa: F401

        for line in sys.stdin:
            job = RehearsalJob.from_json(line)
            child = os.fork()
            if child == 0:
                log = os.open(Path(job.recording_file).with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = run_in(rank, job)
                sys.stdout.flush()
                sys.stderr.flush()
                leave(code)
            _, status = os.waitpid(child, 0)
            answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
            answers.flush()


if __name__ == "__main__":
    main()

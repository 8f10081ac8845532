"""Who was killed, by the lines of launchers."""

from __future__ import annotations

import pytest

from tests.exits.explained import explain

TORCHRUN = """E1122 10:00:00 torch/api.py:1000] failed (exitcode: -9) local_rank: 3 (pid: 9) of binary: python
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:00:00
  host      : node1
  rank      : 11 (local_rank: 3)
  exitcode  : -9 (pid: 9)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 9"""
SPAWNED = (
    "[2026-11-22 10:00:00,1] [INFO] [launch.py:256:main] process {} spawned with command: "
    "['python', '-u', 'a.py', '--local_rank={}']"
)
EXITS = (
    "[2026-11-22 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'a.py', "
    "'--local_rank=1', '--deepspeed'] exits with return code = -9"
)


@pytest.mark.parametrize(
    ("lines", "who"),
    [
        ([TORCHRUN], "rank 11 on node1"),
        ([TORCHRUN.partition("\n")[0]], "local rank 3"),
        # DeepSpeed's launcher prints the command of its last rank, whichever was killed.
        ([EXITS], None),
        ([SPAWNED.format(70, 0), SPAWNED.format(71, 1), EXITS], None),
        (["worker-2: " + EXITS], "a rank on worker-2"),
        (
            ["slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been",
             "srun: error: node1: task 3: Killed", "srun: error: node2: tasks 8-11: Killed"],
            "task 3 on node1, task 8-11 on node2",
        ),
        (
            ["srun: error: node2: tasks 8-11: Killed", "srun: error: node1: task 3: Out Of Memory",
             "srun: error: node3: task 12: Killed"],
            "task 3 on node1",
        ),
        (["srun: error: node1: task 3: Out Of Memory"], "task 3 on node1"),
        (
            [SPAWNED.format(70, 0), SPAWNED.format(71, 1),
             "[12345.6] Out of memory: Killed process 71 (python) total-vm:1kB"],
            "local rank 1",
        ),
        (
            ["mpirun noticed that process rank 3 with PID 71 on node node1 exited on signal 9 (Killed)."],
            None,
        ),
        (["[12345.6] Out of memory: Killed process 71 (python) total-vm:1kB"], None),
    ],
)  # fmt: skip
def test_the_rank_and_its_machine_are_named(lines: list[str], who: str | None) -> None:
    message = explain(*lines).message
    assert message.endswith(f": it was {who}") if who else "it was" not in message


STEPS = [f"{{'loss': 0.5, 'step': {step}}}" for step in range(200)]
LATER = TORCHRUN.replace("node1", "node7").replace("11 (local_rank", "2 (local_rank")


@pytest.mark.parametrize(
    ("lines", "who"),
    [
        ([TORCHRUN, *STEPS, LATER], "rank 2 on node7"),
        ([*STEPS, TORCHRUN, *STEPS, LATER, *STEPS[:2]], "rank 2 on node7"),
        ([TORCHRUN, SPAWNED.format(70, 0), SPAWNED.format(71, 1), LATER], "rank 11 on node1"),
        (
            [TORCHRUN, *STEPS, SPAWNED.format(70, 0), SPAWNED.format(71, 1), "start", "worker-2: " + EXITS],
            "a rank on worker-2",
        ),
        (
            [SPAWNED.format(70, 0), "Out of memory: Killed process 70 (python)", *STEPS,
             SPAWNED.format(71, 1), *STEPS, "[12345.6] Out of memory: Killed process 71 (python)"],
            "local rank 1",
        ),
    ],
)  # fmt: skip
def test_those_of_another_attempt_are_not_named(lines: list[str], who: str) -> None:
    assert explain(*lines).message.endswith(f": it was {who}")


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        "RuntimeError: One of the subprocesses has abruptly died during map operation.",
    ],
)
def test_what_asked_for_too_much_itself_was_killed_by_nobody(line: str) -> None:
    explained = explain("Traceback (most recent call last):", '  File "a.py", line 3, in <module>', line, TORCHRUN)
    assert explained.cause == "host-memory"
    assert "it was" not in explained.message


def test_a_thousand_are_counted() -> None:
    message = explain(*(f"srun: error: node{number}: task {number}: Killed" for number in range(1000))).message
    assert message.endswith("task 3 on node3 and 996 others")


REPORTED = "  exitcode  : {} (pid: 7)"


@pytest.mark.parametrize(
    ("lines", "cause", "message"),
    [
        ([REPORTED.format(75), "srun: error: n1: task 0: Exited with exit code 1"],
         "exit-code", "asked to stop"),
        (["SignalException: Process 9 got signal: 15", REPORTED.format(75)], "exit-code", "exit code 75"),
        ([REPORTED.format(75), REPORTED.format(-9)], "exit-code", "(SIGKILL)"),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", REPORTED.format(75)],
         "cuda-out-of-memory", "ran out of memory"),
    ],
)  # fmt: skip
def test_a_rank_that_was_asked_to_stop_is_reported_unless_another_one_failed(
    lines: list[str], cause: str, message: str
) -> None:
    explained = explain(*lines)
    assert (explained.cause, message in explained.message) == (cause, True), explained.message

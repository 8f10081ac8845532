"""One answer for the logs of several ranks, in the folders that launchers write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import refused
from tests.exits.test_explain import Run, gloo_timeout, out_of_memory, timeout
from zerokit.exits import several
from zerokit.exits.several import explain_logs

LOST = "[rank{}]: RuntimeError: [../pair.cc:78] Connection closed by peer [10.0.0.1]:1"
RAISED = ("Traceback (most recent call last):", '  File "/w/train.py", line 7, in <module>', "ValueError: no batch")
OUT_OF_MEMORY = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have"
AT = "[2026-11-22 10:00:{},1] [INFO] [engine.py:1:step] step"


def write(folder: Path, logs: dict[str, tuple[str, ...]]) -> None:
    for name, lines in logs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    "names",
    [
        # torchrun --log-dir, deepspeed --enable_each_rank_log, Slurm's %j and %t
        ("none_x1/attempt_0/{}/stderr.log"),
        ("20261122100000_rank{}.log"),
        ("slurm-71_{}.out"),
        ("job.o71.{}"),
        ("{}\N{SUPERSCRIPT TWO}0.log"),
    ],
)
def test_the_rank_that_failed_is_the_answer_and_others_follow(tmp_path: Path, names: str) -> None:
    ranks = {0: (LOST.format(0),), 1: (LOST.format(1),), 2: RAISED, 10: ("step 7",)}
    write(tmp_path, {names.format(rank): lines for rank, lines in ranks.items()})
    found = explain_logs([str(tmp_path)])
    assert (found.log, found.line, found.message) == (str(tmp_path / names.format(2)), 3, "ValueError: no batch")
    places = [str(tmp_path / names.format(rank)) for rank in (0, 1, 10)]
    assert found.also[0].startswith(f"{places[0]}:1, {places[1]}:1: a rank lost the connection")
    assert found.also[1] == f"{places[2]}:1 ends without an error: step 7"


def test_of_equal_causes_the_first_in_time_is_the_answer(tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": (AT.format(31), *RAISED), "rank1.log": (AT.format(30), *RAISED)})
    assert explain_logs([str(tmp_path)]).log == str(tmp_path / "rank1.log")
    write(tmp_path, {"rank1.log": RAISED})
    found = explain_logs([str(tmp_path)])
    assert found.log == str(tmp_path / "rank0.log")
    assert found.also == (f"{tmp_path / 'rank1.log'}:3: ValueError: no batch",)


def test_a_cause_of_another_rank_comes_before_ranks_that_waited(tmp_path: Path) -> None:
    write(tmp_path, {"rank0.log": (timeout(0),), "rank3.log": (out_of_memory(),)})
    assert explain_logs([str(tmp_path)]).cause == "cuda-out-of-memory"


def test_ranks_that_waited_are_found_in_all_logs(tmp_path: Path) -> None:
    write(tmp_path, {f"rank{rank}.log": ("world_size=4", timeout(rank)) for rank in (0, 1, 3)})
    found = explain_logs([str(tmp_path)])
    assert "ranks 0-1, 3 waited in ALLREDUCE" in found.message
    assert found.message.endswith("rank 2 did not reach it")
    assert found.also == ()
    write(tmp_path, {"rank2.log": ("world_size=4", timeout(2, 41, "BROADCAST"))})
    assert explain_logs([str(tmp_path)]).message.endswith("they made different calls")


def test_lines_at_which_ranks_waited_are_found_in_all_logs(tmp_path: Path) -> None:
    write(tmp_path, {"a.log": (gloo_timeout(0),), "b.log": (gloo_timeout(1, 60),)})
    assert "rank 0 at train.py:40 (all_reduce), rank 1 at train.py:60" in explain_logs([str(tmp_path)]).message


def test_the_last_attempt_of_torchrun_is_explained(tmp_path: Path) -> None:
    write(tmp_path, {"r/attempt_0/0/stderr.log": RAISED, "r/attempt_1/0/stderr.log": (OUT_OF_MEMORY,)})
    found = explain_logs([str(tmp_path)])
    assert (found.cause, found.also[-1].startswith("1 log of earlier attempts left out")) == ("host-memory", True)
    assert explain_logs([str(tmp_path / "r/attempt_0")]).message == "ValueError: no batch"


def test_a_log_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, zerokit: Run) -> None:
    write(tmp_path, {"rank1.log": RAISED, "empty.log": (), "empty2.log": ()})
    os.mkfifo(tmp_path / "rank0.log")
    code, out, _ = zerokit("explain-exit", *(tmp_path / f"rank{rank}.log" for rank in (0, 1, 2)), "--format", "json")
    found = json.loads(out)
    assert (code, found["log"], found["message"]) == (0, str(tmp_path / "rank1.log"), "ValueError: no batch")
    assert [note.partition("rank")[2].partition(". ")[0] for note in found["also"]] == [
        "0.log: is a pipe, not a regular file",
        "2.log: no such file",
    ]
    assert "no such file" in refused(zerokit, "explain-exit", tmp_path / "x.log", tmp_path / "y.log")
    assert "all logs are empty" in refused(zerokit, "explain-exit", tmp_path / "empty.log", tmp_path / "empty2.log")


def test_a_folder_without_logs_is_refused(tmp_path: Path, zerokit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"train.py": ("x",), "model.bin": ("x",)})
    (tmp_path / "a.log").symlink_to("/etc/hostname")
    assert "has no logs" in refused(zerokit, "explain-exit", tmp_path)
    assert "Name a log file" in refused(zerokit, "explain-exit", "")  # not the folder here
    monkeypatch.setattr(several, "_MOST_ENTRIES", 2)
    assert "has more than 2 files" in refused(zerokit, "explain-exit", tmp_path)


def test_logs_without_an_error_give_1_and_their_last_lines(tmp_path: Path, zerokit: Run) -> None:
    write(tmp_path, {f"rank{rank}.log": (f"step {rank}",) for rank in range(9)})
    code, out, _ = zerokit("explain-exit", tmp_path)
    assert (code, "rank1.log:1 ends without an error: step 1" in out) == (1, True)
    assert "4 more logs without an error" in out

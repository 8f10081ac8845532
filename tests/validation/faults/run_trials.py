"""Trials of runs: kills at moments of chance, a second run, another number of ranks, steps that diverge."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tests.validation.faults.place import Place
from tests.validation.faults.trials import (
    EVERY,
    LONG,
    MORE,
    RESUME,
    Arrange,
    Trial,
    kill,
    options,
    prepares,
    saves,
    steps,
)

_AT_CHANCE = 12
"""Kills of a run of one process that saves after each step."""
_LONGEST_DELAY = 1.5
"""Seconds; in which it makes and saves a few steps."""
_HELD: list[IO[str]] = []
_WHICH = ("zerokit", "first launcher", "second launcher")
_NUMBERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP)
STARTED_BY_ZEROKIT = [
    *((which, number, steps, "train") for which in _WHICH for number in _NUMBERS),
    *((which, signal.SIGKILL, prepares, command) for which in _WHICH for command in ("train", "generate")),
    ("rank 1", signal.SIGKILL, prepares, "generate"),
]
"""What one process of a run with --num-gpus gets, when."""


def later(strike: Arrange, seed: int, longest: float) -> Arrange:
    """The same a random moment later."""

    def wait_and_strike(place: Place) -> None:
        time.sleep(random.Random(seed).uniform(0, longest))
        strike(place)

    return wait_and_strike


def _take_folder(place: Place) -> None:
    """Write into the output folder as another run does: this process holds its lock."""
    place.path("out").mkdir()
    lock = place.path("out/run.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    json.dump({"host": "here", "pid": 1, "run_id": "0123abcd", "started": "now"}, lock)
    lock.flush()
    _HELD.append(lock)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.touch()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def read_only(path: Path) -> None:
    path.touch(0o444)


IN_THE_WAY = [
    *((f"out/{name}", kind)
      for name in ("metrics.jsonl", "run.json", "run.lock", "tokenizer.json")
      for kind in (a_folder, a_pipe, read_only)),
    *((f"out/{name}", a_file) for name in ("checkpoint-1", "earlier", ".unfinished", ".saving")),
    ("out/config.json", a_folder),
]  # fmt: skip
"""What lies at a name that a run writes."""


def _place(name: str, kind: Callable[[Path], None]) -> Arrange:
    def arrange(place: Place) -> None:
        place.path("out").mkdir()
        kind(place.path(name))

    return arrange


def _fill_metrics(place: Place) -> None:
    place.path("out").mkdir()
    place.path("out/metrics.jsonl").symlink_to("/dev/full")


def _lose_unfinished(place: Place) -> None:
    shutil.rmtree(place.path("out/.unfinished"), ignore_errors=True)


def _lose_checkpoints(place: Place) -> None:
    for folder in place.path("out").glob("checkpoint-*"):
        shutil.rmtree(folder, ignore_errors=True)


_SOME = ("--training.max_steps", "12", "--training.logging_steps", "1")


def run_trials() -> Iterator[Trial]:
    """All of them."""
    for seed in range(_AT_CHANCE):
        yield Trial(
            f"one process, SIGKILL at a moment of chance, {seed}", options(*LONG, *EVERY), "stop",
            later(kill(signal.SIGKILL, "launcher"), seed, _LONGEST_DELAY), steps, goes_on=True,
        )  # fmt: skip
    yield Trial("another run has the folder", options(then=_take_folder), "refuse")
    for name, kind in IN_THE_WAY:
        arrange = options(*MORE, *EVERY, then=_place(name, kind))
        yield Trial(f"{name} is {kind.__name__.replace('_', ' ')}", arrange, "refuse")
    yield Trial("metrics on a full disk", options(*EVERY, then=_fill_metrics), "do|end")
    yield Trial("a checkpoint removed as it is written", options(*MORE, *EVERY), "do|end", _lose_unfinished, saves)
    yield Trial("all checkpoints removed", options(*MORE, *EVERY), "do|end", _lose_checkpoints, saves)
    wild = ("--training.learning_rate", "1e10", "--training.max_steps", "5")
    yield Trial("a learning rate that diverges", options(*wild), "end")
    half = ("--training.per_device_train_batch_size", "4")
    yield Trial("resume, by two ranks", options(*RESUME, *half, ranks=2), "do", resumes=True)
    yield Trial("resume, by two ranks with twice the batch", options(*RESUME, ranks=2), "refuse", resumes=True)
    workers = ("--training.dataloader_num_workers", "1", "--stuck-after", "10")
    yield Trial(
        "a loader worker that finds no room in /dev/shm",
        options(*LONG, *workers, shell="mount -t tmpfs -o size=64k tmpfs /dev/shm"), "end",
    )  # fmt: skip
    for number in (signal.SIGSTOP, signal.SIGKILL):
        yield Trial(
            f"a loader worker, {number.name} as it steps", options(*LONG, *workers), "end",
            kill(number, "loader worker"), steps,
        )  # fmt: skip
    for which, number, moment, command in STARTED_BY_ZEROKIT:
        words = LONG if command == "train" else ("--min_new_tokens", "200", "--max_new_tokens", "200")
        # Before the first step a launcher's end ends the run, and `zerokit` killed itself cannot say so.
        must = "leave" if moment is steps and which != "zerokit" else "end"
        must = "stop" if which == "zerokit" and number in (signal.SIGKILL, signal.SIGSEGV) else must
        yield Trial(
            f"zerokit {command} --num-gpus 2, {which} {number.name} as it {moment.__name__}",
            options(*words, ranks=2, num_gpus=True, command=command), must, kill(number, which), moment,
        )  # fmt: skip
    again = ("--resume", "auto", "--retries", "2")
    for which, moment in (("rank 0", steps), ("rank 1", saves)):
        yield Trial(
            f"zerokit train --num-gpus 2 --retries 2, {which} SIGKILL as it {moment.__name__}",
            options(*_SOME, *EVERY, *again, ranks=2, num_gpus=True), "do",
            kill(signal.SIGKILL, which), moment,
        )  # fmt: skip
    yield Trial(
        "zerokit train --num-gpus 2 --retries 2, asked to stop",
        options(*LONG, *EVERY, *again, ranks=2, num_gpus=True), "leave",
        kill(signal.SIGTERM, "zerokit"), steps,
    )  # fmt: skip
    yield Trial(
        "--retries 2 and a learning rate that diverges",
        options(*wild, *again, ranks=2, num_gpus=True), "end",
    )  # fmt: skip
    for which, number, moment, stage in (
        ("launcher", signal.SIGKILL, saves, 2),
        ("second launcher", signal.SIGKILL, steps, 3),
        ("second launcher", signal.SIGKILL, saves, 1),
        ("rank 0", signal.SIGKILL, saves, 3),
        ("rank 1", signal.SIGKILL, saves, 2),
    ):
        must = {"launcher": "stop", "second launcher": "drop"}.get(which, "end")
        yield Trial(
            f"{which} of two, {number.name} as it {moment.__name__} at a moment of chance, stage {stage}",
            options(*LONG, *EVERY, "--deepspeed.zero_optimization.stage", str(stage), ranks=2), must,
            later(kill(number, which), stage, _LONGEST_DELAY), moment, goes_on=True,
        )  # fmt: skip

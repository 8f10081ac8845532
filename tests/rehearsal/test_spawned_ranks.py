"""Which of the processes that a script starts are ranks."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from zerokit.rehearsal.stand_ins import spawned_ranks
from zerokit.rehearsal.stand_ins.spawned_ranks import StartedRanks, _is_rank, _make_executor


def _train(rank: int) -> None:
    _set_up(rank)


def _set_up(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank)


def _produce(queue: Any, start: int) -> None:
    """In a file that has code to join the others, which this does not call."""
    while True:
        queue.put(start)


def _call(function: Callable[[int], None], rank: int) -> None:
    function(rank)


class _Trainer:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def main(self, rank: int) -> None:
        self._join(rank)

    @staticmethod
    def _join(rank: int) -> None:
        dist.init_process_group("gloo", rank=rank)


class _Settings(dict[str, int]):
    """Has a method that wraps one of C, as libraries' dicts have."""

    @functools.wraps(dict.update)
    def update(self, *given: Any, **named: Any) -> None:
        super().update(*given, **named)


class _Rank(multiprocessing.Process):
    def __init__(self, rank: int) -> None:
        super().__init__(args=(rank,))

    def run(self) -> None:
        _set_up(0)


def _closure() -> Callable[[int], None]:
    set_up = _set_up

    def train(rank: int) -> None:
        (lambda: set_up(rank))()

    return train


def _made() -> Callable[[int], None]:
    """By exec, as a script may make its functions."""
    names: dict[str, Any] = {"set_up": _set_up}
    exec("def train(rank):\n    set_up(rank)", names)
    made: Callable[[int], None] = names["train"]
    return made


@pytest.mark.parametrize(
    ("process", "is_rank"),
    [
        (multiprocessing.Process(target=_train, args=(0,)), True),
        (multiprocessing.Process(target=functools.partial(_train), kwargs={"rank": 0}), True),
        (multiprocessing.Process(target=_call, args=(_train, 0)), True),
        (multiprocessing.Process(target=_produce, args=(_Settings(), 0)), False),
        (multiprocessing.Process(target=_Trainer([]).main, args=(0,)), True),
        (multiprocessing.Process(target=_train, args=(SimpleNamespace(nranks=8, rank=0),)), True),
        (multiprocessing.Process(target=_train, args=({"local_rank": 0},)), True),
        (multiprocessing.Process(target=_train, args=(SimpleNamespace(nranks=0, seed=0),)), False),
        (multiprocessing.Process(target=_closure(), args=(0,)), True),
        (multiprocessing.Process(target=_made(), args=(0,)), True),
        (_Rank(0), True),
        (_Rank(1), False),
        (multiprocessing.Process(target=_train, args=(1,)), False),
        (multiprocessing.Process(target=_produce, args=(None, 0)), False),
        (multiprocessing.Process(target=print, args=(0,)), False),
    ],
)
def test_a_rank_is_known_by_its_number_and_by_what_it_calls(
    process: Any, is_rank: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawned_ranks, "_has_joined", lambda: False)  # as other tests of this process may have
    assert _is_rank(process, 0) == is_rank


class _Workers(BaseProcess):
    """Of a library that starts processes in its own way, as joblib's loky."""

    _start_method = "loky"


@pytest.mark.parametrize(
    ("process", "module", "is_forked"),
    [
        (multiprocessing.get_context("spawn").Process(), "train", True),
        (multiprocessing.get_context("forkserver").Process(), "torch.utils.data.dataloader", True),
        (multiprocessing.Process(), "train", True),
        (multiprocessing.get_context("spawn").Process(), "concurrent.futures.process", False),
        (_Workers(), "joblib.externals.loky.process_executor", False),
    ],
)
def test_what_would_begin_anew_is_forked_but_beside_threads_of_an_executor(
    process: Any, module: str, is_forked: bool
) -> None:
    started: list[Any] = []
    names: dict[str, Any] = {"__name__": module, "start": StartedRanks(0, 4)._start, "made": started.append}
    exec("def wrapped(process):\n    start(made, process)\ndef work(process):\n    wrapped(process)", names)
    names["work"](process)
    assert started == [process]
    assert ("_Popen" in vars(process)) == is_forked


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"mp_context": multiprocessing.get_context("spawn")}, "fork"),
        ({"mp_context": multiprocessing.get_context("forkserver")}, "fork"),
        ({"mp_context": multiprocessing.get_context("spawn"), "max_tasks_per_child": 9}, "spawn"),
    ],
)
def test_an_executor_knows_that_its_workers_are_forked(given: dict[str, Any], method: str) -> None:
    executor: Any = ProcessPoolExecutor.__new__(ProcessPoolExecutor)
    _make_executor(ProcessPoolExecutor.__init__, executor, 2, **given)
    assert executor._mp_context.get_start_method() == method
    assert executor._safe_to_dynamically_spawn_children == (method != "fork")

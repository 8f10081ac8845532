"""Ranks that a script starts itself, by torch.multiprocessing.spawn or one Process each.

The rehearsed rank's function runs in this process; other ranks are not started. A Process counts as a rank
if the script starts it before it joins a process group, gives it its number (alone or in an object with a
rank), and its function joins a group. Any other Process, such as a data worker, is forked even if the script
requests spawn: a spawned process would run the script's imports without a GPU. An executor forks all its
workers before it has threads, whose locks a fork would copy. Workers that replace others after some tasks are
spawned, as are processes of libraries with their own start method (joblib's loky).
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from multiprocessing.context import ForkServerProcess, Process, SpawnProcess
from multiprocessing.popen_fork import Popen
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch.distributed as dist

from zerokit.code_origin import is_in_library
from zerokit.errors import LaunchError
from zerokit.patches import Patch, PrivateAttribute, apply, watch, wrap
from zerokit.rehearsal.errors import calling_line
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_PURPOSE = "run the rehearsed rank's function in its process"
_SPAWNS = [
    Patch("torch.multiprocessing", "spawn", _PURPOSE),
    Patch("torch.multiprocessing", "start_processes", _PURPOSE),
]
_PROCESS = "multiprocessing.process:BaseProcess"
_START = Patch(_PROCESS, "start", _PURPOSE)
_JOIN = Patch(_PROCESS, "join", _PURPOSE)
_IS_ALIVE = Patch(_PROCESS, "is_alive", _PURPOSE)
_EXIT_CODE = Patch(_PROCESS, "exitcode", _PURPOSE)
_MAKE_PROCESS = PrivateAttribute(_PROCESS, "_Popen", "fork what a script spawns")
_EXECUTORS = "concurrent.futures.process"
_MAKE_EXECUTOR = Patch(f"{_EXECUTORS}:ProcessPoolExecutor", "__init__", "make an executor fork its workers")
_BEGINNING_ANEW = ("spawn", "forkserver")
_JOIN_OTHERS = ({"init_process_group"}, {"init_distributed"}, {"deepspeed", "initialize"}, {"Accelerator"})
"""A function joins a process group if it uses all names of one of these sets."""


@stand_in("torch.multiprocessing.spawn", "multiprocessing.Process", "ProcessPoolExecutor")
def install(setup: RankSetup) -> None:
    """Run the rehearsed rank's function in this process."""
    StartedRanks(setup.local_rank, setup.local_ranks).install()


class StartedRanks:
    """Replaces the functions that start processes, for the rank `local_rank` of a node's `local_ranks`."""

    def __init__(self, local_rank: int, local_ranks: int) -> None:
        self._local_rank = local_rank
        self._local_ranks = local_ranks
        self._started: Counter[str] = Counter()
        """Ranks started so far, by line."""
        self._ranks: list[Any] = []

    def install(self) -> None:
        """Put them in the place of torch's and Python's."""
        for patch in _SPAWNS:
            wrap(patch, self._spawn)
        watch(_MAKE_PROCESS)
        wrap(_MAKE_EXECUTOR, _make_executor)
        wrap(_START, self._start)
        wrap(_JOIN, self._of_rank(None))
        wrap(_IS_ALIVE, self._of_rank(False))
        apply(_EXIT_CODE, lambda known: property(lambda process: self._of_rank(0)(known.fget, process)))

    def _spawn(
        self,
        spawn: Any,
        fn: Any,
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *further: Any,
        **given: Any,
    ) -> Any:
        if _has_joined():
            return spawn(fn, args, nprocs, join, *further, **given)
        if nprocs != self._local_ranks:
            raise LaunchError(
                f"the script starts {nprocs} ranks on a node, and {self._local_ranks} are rehearsed",
                where=calling_line(),
                hint="Let --num-gpus and --gpus-per-node say what the script starts",
            )
        fn(self._local_rank, *args)
        return None if join else SimpleNamespace(join=lambda *_, **__: True)

    def _start(self, start: Any, process: Any) -> None:
        caller = sys._getframe(2)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        number = self._started[place]
        if is_in_library(caller.f_code.co_filename) or not _is_rank(process, number):
            is_executors = caller.f_globals.get("__name__") == _EXECUTORS
            is_python_itself = isinstance(process, Process | SpawnProcess | ForkServerProcess)
            if is_python_itself and not is_executors:
                process._Popen = Popen
            start(process)
            return
        self._started[place] += 1
        self._ranks.append(process)
        if number == self._local_rank:
            process.run()

    def _of_rank(self, answer: Any) -> Callable[..., Any]:
        """A replacement that returns `answer` for ranks and calls the original for others."""

        def ask(original: Any, process: Any, *arguments: Any, **given: Any) -> Any:
            if any(process is rank for rank in self._ranks):
                return answer
            return original(process, *arguments, **given)

        return ask


def _make_executor(
    make: Any, executor: Any, max_workers: Any = None, mp_context: Any = None, *further: Any, **given: Any
) -> None:
    method = (mp_context or multiprocessing).get_start_method()
    # One whose workers are replaced after some tasks starts them while its threads run.
    if method in _BEGINNING_ANEW and given.get("max_tasks_per_child") is None:
        mp_context = multiprocessing.get_context("fork")
    make(executor, max_workers, mp_context, *further, **given)


def _has_joined() -> bool:
    return dist.is_initialized()


def _is_rank(process: Any, number: int) -> bool:
    """Whether a process is rank `number`, by its arguments and by the code that it runs."""
    given = [*getattr(process, "_args", ()), *getattr(process, "_kwargs", {}).values()]
    if number not in chain.from_iterable(map(_numbers, given)):
        return False
    if number == 0 and _has_joined():  # after the first, it is the rehearsed rank that has
        return False
    # What is given may be the function itself, or the object that does the work.
    return _joins_others([getattr(process, "_target", None) or process, *given])


def _numbers(given: Any) -> Iterator[int]:
    """An integer itself, or those of an object or a dict by names that end in "rank"."""
    kept = given if isinstance(given, dict) else getattr(given, "__dict__", {})
    named = {"rank": given} if type(given) is int else kept
    for name, value in named.items():
        if type(value) is int and isinstance(name, str) and name.endswith("rank"):
            yield value


def _joins_others(run: list[Any]) -> bool:
    """Whether one of `run`, or a function of the script that they call by name, joins the other ranks."""
    left, seen = list(run), set()
    while left:
        for function in _functions(left.pop()):
            code = function.__code__
            path = code.co_filename
            if code in seen or is_in_library(path):
                continue
            seen.add(code)
            names = _names(code)
            if any(wanted <= names for wanted in _JOIN_OTHERS):
                return True
            known = {**function.__globals__, **_enclosing(function)}
            named = [known[name] for name in names & known.keys()]
            modules = [one for one in named if isinstance(one, ModuleType)]
            left += named
            left += [vars(module)[name] for module in modules for name in names & vars(module).keys()]
    return False


def _enclosing(function: FunctionType) -> dict[str, Any]:
    """The variables of the functions around it that it names, as far as they have been given a value."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> set[str]:
    """All that it names, and the functions written in it."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*map(_names, inner))


def _functions(runs: Any) -> Iterator[FunctionType]:
    """The functions that `runs` may run: itself, or all methods of a class or an object."""
    while isinstance(runs, functools.partial):
        runs = runs.func
    if isinstance(runs, MethodType):
        runs = runs.__self__
    runs = inspect.unwrap(runs) if callable(runs) else runs
    if isinstance(runs, FunctionType):
        yield runs
        return
    for base in (runs if isinstance(runs, type) else type(runs)).__mro__:
        for method in vars(base).values():
            method = getattr(method, "__func__", method)  # of a class, or static
            if isinstance(method, FunctionType):
                wrapped = inspect.unwrap(method)
                yield wrapped if isinstance(wrapped, FunctionType) else method  # one of C has no code

"""Optimizer steps that nobody tells of: parameters are written after a backward pass gave them gradients.

A script may update its parameters by hand, or by an optimizer of its own that is none of torch's. Whatever
does it, the parameters that received gradients are written in place, or get other memory, before the next
backward pass. The last such write is the end of a step, which is known when a batch is asked for, a module is
called or the next backward pass begins. A backward pass after which nothing is written accumulates. Copies
that receive no gradients, as averages of weights, do not count, and parameters that one of torch's optimizers
holds are left to its own step.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.recording import CATEGORY_CODES, Array, StepMark
from zerokit.rehearsal.watching.next_call import NextCall
from zerokit.reporting.phases import RUN_PHASES

_MAKE_OPTIMIZER = Patch("torch.optim.optimizer:Optimizer", "__init__", "know whose steps torch tells of")


class Moment(NamedTuple):
    """What a rank had done by some moment."""

    events: int
    calls: int
    """Collectives."""
    flops: float
    time: list[int] | None
    """As of :meth:`RankTime.moment`."""


class Update(NamedTuple):
    """An optimizer step that was seen by its writes."""

    begin: Moment
    """The end of the backward pass before."""
    end: Moment
    """The last write."""


class Updates:
    """Sees when parameters that received gradients are written.

    Args:
        backend: the loaded library.
        now: gives the moment.
        is_over: called when what was written is all of a step.
    """

    def __init__(
        self,
        backend: Backend,
        now: Callable[[], Moment],
        is_over: Callable[[], object],
    ) -> None:
        self._backend = backend
        self._now = now
        self._next_call = NextCall(is_over)
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._watched: dict[int, int] = {}
        """Where the memory of tensors was at the end of the last backward pass, by their identity.

        No tensor is referred to, not even weakly: torch could not swap it then."""
        self._thread = 0
        self._begin: Moment | None = None
        self._last: Moment | None = None

    def install(self) -> None:
        """Know torch's optimizers from here on."""
        wrap(_MAKE_OPTIMIZER, self._make_optimizer)

    def _make_optimizer(self, make: Any, optimizer: Any, *arguments: Any, **given: Any) -> None:
        make(optimizer, *arguments, **given)
        self._optimizers.add(optimizer)

    def watch(self, leaves: Iterable[Any], reached: Iterable[Any]) -> None:
        """A backward pass has ended: look at what it gave gradients from here on.

        Args:
            leaves: those that it gave some. What sharding puts in the place of parameters for a while is
                among them; the parameters have the gradients then.
            reached: all leaves of the graphs that it went through.
        """
        self.forget()
        trained = {id(one): one for one in leaves}
        if any(one.is_cuda and _storage(one) is None for one in trained.values()):
            trained |= {id(one): one for one in tensors_alive() if _has_grad(one)}
        concerned = {*trained, *map(id, reached)}
        if any(id(one) in concerned for optimizer in self._optimizers for one in _held_by(optimizer)):
            return
        storages = [(leaf, storage) for leaf in trained.values() if (storage := _storage(leaf)) is not None]
        self._watched = {id(leaf): storage._cdata for leaf, storage in storages}
        self._thread = threading.get_ident()
        self._begin = self._now()
        self._backend.watch_updates(self._wrote, [storage for _, storage in storages])

    def forget(self) -> None:
        """Look no more, until the next backward pass has ended."""
        self._watched, self._begin, self._last = {}, None, None
        self._backend.watch_updates(None, [])
        self._next_call.forget()

    def _wrote(self) -> None:
        self._next_call.wait()
        self._last = self._now()

    def optimizers_waiting(self, stepped: Collection[int]) -> bool:
        """Whether there are gradients for others of torch's optimizers than those that have stepped.

        Args:
            stepped: by their identity. What they hold is updated, whoever holds it, too.
        """
        alive = list(self._optimizers)
        done = {id(one) for each in alive if id(each) in stepped for one in _held_by(each)}
        return any(_has_grad(one) for each in alive for one in _held_by(each) if id(one) not in done)

    def take(self, tensors: Iterable[Any] = ()) -> Update | None:
        """The step since the last backward pass, if there was one. It is told once.

        What another thread asks, such as one that fetches batches ahead, may come in its midst.

        Args:
            tensors: parameters that may have been given other data.
        """
        begin, last = self._begin, self._last
        if begin is None or threading.get_ident() != self._thread:
            return None
        moved = [self._backend.event_of(storage) + 1 for storage in self._moved(tensors)]
        if moved:
            last = last or begin
            last = last._replace(events=max(last.events, *moved))
        if last is None:
            return None
        self.forget()
        # Temporaries of the last write are still there when it is told.
        return Update(begin, last._replace(events=self._backend.after_releases(last.events)))

    def _moved(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """The memory of parameters whose data were replaced.

        A flat parameter of FSDP shows its own shard, or what was gathered, as the moment asks.
        """
        import torch

        for tensor in tensors:
            before = self._watched.get(id(tensor))
            is_flat = type(tensor).__name__ == "FlatParameter"
            if before is None or is_flat or not isinstance(tensor, torch.nn.Parameter):
                continue
            storage = _storage(tensor)
            if storage is not None and storage._cdata != before:
                yield storage


def leaves_of(roots: Any) -> list[Any]:
    """The tensors that a backward pass from `roots` gives gradients to."""
    nodes = [node for tensor in several(roots) if (node := getattr(tensor, "grad_fn", None)) is not None]
    seen = set(nodes)
    leaves = []
    while nodes:
        node = nodes.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return leaves


def parameters_among(leaves: Iterable[Any]) -> list[Any]:
    """Those that modules have: a graph may begin with activations, too, such as a frozen embedding's."""
    import torch

    return [leaf for leaf in leaves if isinstance(leaf, torch.nn.Parameter)]


def tensors_alive() -> list[Any]:
    """All that Python knows of."""
    import torch

    return [one for one in gc.get_objects() if torch.Tensor in type(one).__mro__]


def several(tensors: Any) -> list[Any]:
    """The tensors that autograd is given as one, or as several."""
    import torch

    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def place(updates: Sequence[Update], marks: Sequence[StepMark], events: Array, blocks: Array) -> None:
    """Say of events and blocks which step and phase they are of, where that was known later only.

    What was made in a step and outlives it is taken for the optimizer's, unless something else is said of it.
    """
    ends = np.array([mark.event for mark in marks])
    events["step"] = np.searchsorted(ends, np.arange(len(events)), side="right")
    other, states = CATEGORY_CODES.index("other"), CATEGORY_CODES.index("optimizer_states")
    for begin, end in updates:
        part = events[begin.events : end.events]
        part["phase"] = RUN_PHASES.index("step")
        made = part["block"][part["bytes"] > 0]
        blocks["phase"][made] = RUN_PHASES.index("step")
        kept = np.setdiff1d(made, part["block"][part["bytes"] < 0])
        blocks["category"][kept[blocks["category"][kept] == other]] = states


def _has_grad(parameter: Any) -> bool:
    return parameter.is_leaf and parameter.grad is not None  # torch warns where others are asked


def _held_by(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def _storage(tensor: Any) -> Any:
    """Where what this rank holds of a tensor lies; None for no memory of the device."""
    local = getattr(tensor, "_local_tensor", tensor)
    if not local.is_cuda:
        return None
    try:
        storage = local.untyped_storage()
        return storage if storage.nbytes() else None
    except (NotImplementedError, RuntimeError):  # a subclass that has several tensors in it
        return None

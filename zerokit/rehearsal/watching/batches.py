"""The batches that a run is rehearsed with: the first ones as they come, then the largest of the data.

The loaders of transformers, accelerate, Lightning and DeepSpeed use `torch.utils.data.DataLoader`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from zerokit.patches import Patch, watch, wrap
from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.report.report import Batches, BatchSize, DataTime, Evaluation, LargestBatch
from zerokit.rehearsal.timing.rank_time import untimed
from zerokit.rehearsal.watching.labels import Labels
from zerokit.rehearsal.watching.scan import CRITERIA, READ, Candidate, Scan, measure, scan
from zerokit.rehearsal.watching.watcher import Watcher


@dataclass
class Source:
    """The loaders of one data set: DeepSpeed's makes a new one for each epoch."""

    dataset: Any
    name: str = ""
    """Of its scan, the same on all ranks."""
    scan: Scan | None = None
    workers: int = 0
    """Of the loader that gave the last batch."""
    handed: int = 0
    """Batches given to training."""
    steps_before: int = 0
    """Optimizer steps done when the first of them was given."""
    micro_steps: int = 0
    """Of the engines, when it last gave a batch."""
    first: list[BatchSize] = field(default_factory=list)
    """The largest of the loader's own batches, by each criterion."""
    own_sizes: list[tuple[int, BatchSize]] = field(default_factory=list)
    """The loader's own batches to train on, and the optimizer step, counted from 1, of each."""
    is_uneven: bool = False
    """Whether the loader's own batches have several sizes."""
    signature: Any = None
    in_steps: set[int] = field(default_factory=set)
    """Optimizer steps done when it gave a batch."""
    worst: list[Candidate] | None = None
    """Those still to be rehearsed; None before that is decided."""
    rehearsed: list[LargestBatch] = field(default_factory=list)
    """Batches of the scan that were handed out in place of others."""
    over: int = 0
    """The optimizer step, counted from 1, of the last batch of the scan that was due."""
    tried: int = 0
    """Batches of the scan that were due."""
    tokens: Counter[int] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)
    """Of each optimizer step, counted from 1, as are `tokens`."""

    def add_own(self, batch: Any, step: int | None = None) -> None:
        """Register a batch of the loader's own, to be trained on in `step` if that is given."""
        size = measure(batch)
        if step is not None:
            self.own_sizes.append((step, size))
        self.first = self.first or [size] * len(CRITERIA)
        self.is_uneven = self.is_uneven or size != self.first[0]
        self.first = [max(size, most, key=of) for of, most in zip(CRITERIA, self.first, strict=True)]
        self.signature = signature_of(batch)

    def larger(self, *, may_be_ahead: bool) -> list[int]:
        """Places in the scan of batches that are larger than the loader's own.

        The first step does not count: optimizers make their states at its end. `may_be_ahead`: whether the
        last batch may be for the next step.
        """
        sizes = [size for step, size in self.own_sizes if step > 1] or [size for _, size in self.own_sizes]
        most_of: Callable[..., int] = max
        if may_be_ahead:  # one of the last two is the last step's
            sizes, most_of = [size for _, size in self.own_sizes[-2:]], min
        return [
            place
            for place, one in enumerate(self.scan.worst if self.scan else [])
            if one.data is not None and sizes and any(of(one.size) > most_of(map(of, sizes)) for of in CRITERIA)
        ]

    def most_tokens(self) -> int:
        """The most tokens of the loader's own batches."""
        return self.first[0].tokens

    def facts(self) -> Batches:
        """Facts for the report about batches that were trained on."""
        found = self.scan or Scan()
        rehearsed = [self.first[0], *(one.size for one in self.rehearsed)]
        largest = [*rehearsed, *(one.size for one in found.worst)]
        return Batches(
            rehearsed_tokens=max(size.tokens for size in rehearsed),
            longest_tokens=max(size.tokens for size in largest),
            first=self.first[0],
            largest=max(largest, key=CRITERIA[0]),
            rehearsed=self.rehearsed,
            scanned=found.batches,
            of=found.of,
            is_whole=found.is_whole,
            seconds=found.seconds,
            problem=found.problem,
        )


def signature_of(batch: Any) -> Any:
    """What two batches of one loader have in common: names, types, and numbers of dimensions."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return str(batch.dtype), len(batch.shape)
    if hasattr(batch, "items"):
        return {str(key): signature_of(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(signature_of(value) for value in batch)
    if isinstance(batch, list):
        return [signature_of(value) for value in batch[:1]]
    return type(batch).__name__


_MAKE = Patch("torch.utils.data.dataloader:DataLoader", "__init__", "find data that is never requested")
_ITERATE = Patch("torch.utils.data.dataloader:DataLoader", "__iter__", "find the largest batches")
_NEXT = Patch("torch.utils.data.dataloader:_BaseDataLoaderIter", "__next__", "rehearse the largest batches")

_ARGUMENTS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
"""The first ones of a DataLoader."""
_MOST_STEPS_FOR_ONE = 3
"""Optimizer steps within which a batch that has been handed out is used: loaders fetch one ahead."""


class BatchWatcher(Watcher):
    """Measures what loaders hand out, and has the largest batches follow the requested steps.

    Args:
        steps: optimizer steps whose batches come as they are; 0: all of them.
        seconds: to look for larger ones, in all; 0: none are looked for.
        factor: what the script's micro-batch is multiplied by.
        is_resized: whether the script's arguments are changed already; else its loaders are.
    """

    def __init__(
        self,
        labels: Labels,
        exchange: Exchange,
        steps: int,
        seconds: float,
        completed: Callable[[], int],
        *,
        factor: float = 1,
        is_resized: Callable[[], bool] = lambda: True,
    ) -> None:
        self._labels, self._exchange = labels, exchange
        self.steps, self._completed = steps, completed
        self._seconds_left = seconds if steps else 0.0
        self._scans = self._seconds_left > 0
        self._factor, self._is_resized = factor, is_resized
        self._resized_to: list[tuple[Any, int]] = []
        """Data sets, and the changed batch sizes of their loaders."""
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        """Of loaders, by where they were made."""
        self._made: Counter[str] = Counter()
        self.most: int | None = None
        """Batches that a rank takes in the whole run, if known."""
        self.sources: list[Source] = []
        self.evaluated: list[Source] = []
        """Those that an evaluation was rehearsed with."""
        self._last_of_step: dict[int, Source] = {}
        """Which gave the last batch after so many optimizer steps."""
        self._evaluating = 0
        """Batches that an evaluation takes at least; 0: there is none."""
        self._never_asked: WeakSet[Any] = WeakSet()
        self._source_of_iterator: WeakKeyDictionary[Any, Source] = WeakKeyDictionary()

    def on_process_start(self) -> None:
        wrap(_MAKE, self._make)
        wrap(_ITERATE, self._iterate)
        wrap(_NEXT, self._next)
        for attribute in READ:
            watch(attribute)

    @contextmanager
    def only_the_largest(self, *, at_least: int = 1) -> Iterator[None]:
        """Have loaders hand out the largest batches of their data, then others up to `at_least`, and end."""
        self._evaluating = at_least
        try:
            yield
        finally:
            self._evaluating = 0

    # ---- the loader

    def _make(self, initialize: Any, loader: Any, *arguments: Any, **given: Any) -> None:
        # accelerate makes loaders of those that the script has made, with their sizes.
        is_first = not type(loader).__module__.startswith("accelerate.")
        if self._factor != 1 and is_first and not self._is_resized():
            arguments, given = self._resized(arguments, given)
        initialize(loader, *arguments, **given)
        self._never_asked.add(loader)
        self._name_of(loader)

    def _resized(self, arguments: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a DataLoader, for batches of the changed size."""
        named = dict(zip(_ARGUMENTS, arguments, strict=False)) | given
        dataset, size = named.get("dataset"), named.get("batch_size")
        # Lightning makes another loader of the script's, and takes its size from it.
        is_resized = any(one is dataset and size == changed for one, changed in self._resized_to)
        if not isinstance(size, int) or is_resized or named.get("batch_sampler") is not None:
            return arguments, given
        changed = max(1, int(size * self._factor))
        self._resized_to.append((dataset, changed))
        if len(arguments) > 1:
            return (dataset, changed, *arguments[2:]), given
        return arguments, {**given, "batch_size": changed}

    def _name_of(self, loader: Any) -> str:
        """A name for a loader, the same on all ranks, which may have other loaders and uneven data."""
        if loader not in self._names:
            place = f"{type(loader.dataset).__name__}.{script_line()}"
            self._names[loader] = f"{self._factor}.{place}.{self._made[place]}"
            self._made[place] += 1
        return self._names[loader]

    def _iterate(self, iterate: Any, loader: Any) -> Any:
        source = self._source_of(loader.dataset)
        if source.scan is None and self._scans:
            source.name = self._name_of(loader)
            source.scan = self._exchange.made_once(
                f"scanned.{source.name}", "look through the data", lambda: self._scan(loader)
            )
            self._seconds_left -= source.scan.seconds
        if self._evaluating:
            self.evaluated.append(replace(source, first=[], handed=0, rehearsed=[]))
            source = self.evaluated[-1]
        iterator = iterate(loader)
        self._source_of_iterator[iterator] = source
        return iterator

    def _source_of(self, dataset: Any) -> Source:
        for source in self.sources:
            if source.dataset is dataset:
                return source
        self.sources.append(Source(dataset))
        return self.sources[-1]

    def _scan(self, loader: Any) -> Scan:
        """Search the data, unless the time is up; the other ranks get the result too."""
        if self._seconds_left <= 0:
            return Scan()
        with untimed():
            return scan(loader, self._seconds_left, most=self.most)

    def _next(self, original: Any, iterator: Any) -> Any:
        with untimed():
            batch = original(iterator)
        source = self._source_of_iterator.get(iterator)
        if source is None:
            return batch
        if self._evaluating:
            return self._to_evaluate(source, batch)
        if not self._is_training(source):
            return batch
        source.workers = int(getattr(iterator, "_num_workers", 0))
        source.in_steps.add(self._completed())
        self._last_of_step[self._completed()] = source
        if not source.handed:
            source.steps_before = self._completed()
        is_due = self._is_due(source)
        if is_due:
            self._decide(source)
        if is_due and source.worst:
            batch = self._hand_out(source, source.worst.pop(0), batch)
            if getattr(iterator, "_pin_memory", False):
                from torch.utils.data._utils.pin_memory import pin_memory

                batch = pin_memory(batch, getattr(iterator, "_pin_memory_device", None))  # type: ignore[no-untyped-call]
        elif not is_due:
            source.add_own(batch, self._step_of_next(source))
        step = self._step_of_next(source)
        source.tokens[step] += measure(batch).tokens
        source.batches[step] += 1
        source.handed += 1
        return batch

    def _to_evaluate(self, source: Source, batch: Any) -> Any:
        worst = [one for one in (source.scan.worst if source.scan else []) if one.data is not None]
        source.handed += 1
        if source.handed > max(self._evaluating, len(worst)):
            raise StopIteration
        source.add_own(batch)
        if source.handed > len(worst) or signature_of(worst[source.handed - 1].batch) != source.signature:
            return batch
        found = worst[source.handed - 1].batch
        source.add_own(found)
        return found

    def _decide(self, source: Source) -> None:
        """Choose the batches that follow, the same on all ranks."""
        if source.worst is None:
            found = source.scan.worst if source.scan else []
            places = source.larger(may_be_ahead=self._accumulated() is None)
            if found:
                places = self._exchange.made_once(
                    f"largest.{source.name}", "choose the largest batches", lambda: places
                )
            source.worst = [found[place] for place in places]

    def _hand_out(self, source: Source, candidate: Candidate, batch: Any) -> Any:
        """The candidate's batch; `batch` if the loader of rank 0 is of another kind."""
        first = last = self._step_of_next(source)
        if self._accumulated() is None:
            last += 1  # loaders may fetch one ahead
        source.over, source.tried = last, source.tried + 1
        found = candidate.batch
        if signature_of(found) != source.signature:
            return batch
        source.rehearsed.append(
            LargestBatch(
                size=candidate.size, number=candidate.number, rank=candidate.rank, first_step=first, last_step=last
            )
        )
        return found

    def _step_of_next(self, source: Source) -> int:
        """The optimizer step, counted from 1, that the next batch is of."""
        accumulated = self._accumulated()
        if accumulated is None:
            return self._completed() + 1
        return source.steps_before + source.handed // accumulated + 1

    def _is_training(self, source: Source) -> bool:
        """Whether the script may train on batches of `source`; some leave the model in evaluation mode."""
        import torch

        engines = self._labels.engines
        micro_steps = sum(engine.micro_steps for engine in engines)
        has_trained, source.micro_steps = 0 < source.micro_steps < micro_steps, micro_steps
        return torch.is_grad_enabled() and (
            not engines or has_trained or any(engine.module.training for engine in engines)
        )

    def _accumulated(self) -> int | None:
        """Batches of an optimizer step; None without an engine."""
        steps = [int(engine.gradient_accumulation_steps()) for engine in self._labels.engines]
        return max(steps, default=None)

    def _is_due(self, source: Source) -> bool:
        """Whether the requested steps have their batches, and the next one may be another."""
        over = max(self.steps, source.over)
        accumulated = self._accumulated()
        if accumulated is None:
            return self._completed() >= over
        return source.handed >= accumulated * (over - source.steps_before)

    # ---- the end of the run

    def wants_more(self) -> bool:
        """Whether batches are left to rehearse; a rank without batches, as of a pipeline, does as rank 0."""
        sources = self._trained_on()
        over = self._are_rehearsed(sources)
        if sources and self._exchange.rank != 0:
            return not over
        return not self._exchange.made_once(f"over.{self._factor}.{self._completed()}", "end the run", lambda: over)

    def _are_rehearsed(self, sources: list[Source]) -> bool:
        completed = self._completed()
        for source in sources:
            self._decide(source)
            if source.over > completed:
                return False
            wanted = len(source.worst or []) + source.tried
            if source.worst and completed < self.steps + _MOST_STEPS_FOR_ONE * wanted:
                return False
        return True

    def are_uneven(self) -> bool:
        """Whether the sizes of batches depend on the order of the examples."""
        return any(
            source.is_uneven or any(one.size != source.first[0] for one in (source.scan or Scan()).worst)
            for source in [*self.sources, *self.evaluated]
            if source.first
        )

    def facts(self) -> Batches | None:
        """Facts for the report about the batches; None if nothing was trained on."""
        source = self._main_source()
        return None if source is None else source.facts()

    def tokens_of_steps(self) -> list[int | None]:
        """The tokens of this rank in each completed step; None where batches are not of tokens."""
        source = self._main_source()
        if source is None or source.first[0].unit != "tokens":
            return [None] * self._completed()
        return [source.tokens[step] or None for step in range(1, self._completed() + 1)]

    def reading_facts(self) -> DataTime | None:
        """Facts for the report about reading data; None if nothing was measured."""
        source = self._main_source()
        if source is None or source.scan is None or source.scan.batch_seconds is None:
            return None
        return DataTime(
            batch_seconds=source.scan.batch_seconds,
            batches=source.scan.batches,
            workers=source.workers,
            batches_of_step=max(source.batches.values()),
        )

    def evaluation_facts(self) -> Evaluation | None:
        """Facts for the report about an evaluation; None if none was rehearsed."""
        source = max((one for one in self.evaluated if one.first), key=Source.most_tokens, default=None)
        if source is None:
            return None
        found, largest = source.scan or Scan(), source.first[0]
        return Evaluation(largest=largest, scanned=found.batches, of=found.of, is_whole=found.is_whole)

    def never_asked(self) -> list[str]:
        """Warnings about data whose loaders were never used, with its largest batch."""
        lines: list[str] = []
        if self._exchange.rank != 0 and self._exchange.is_active:
            return lines  # rank 0 reports it
        for loader in list(self._never_asked):
            if self._seconds_left <= 0 or any(one.dataset is loader.dataset for one in self.sources):
                continue
            source = self._source_of(loader.dataset)
            source.scan = self._scan(loader)
            self._seconds_left -= source.scan.seconds
            if source.scan.worst:
                lines.append(
                    f"not rehearsed: the loader of a {type(loader.dataset).__name__} was not used "
                    "within the rehearsed steps (it may be for evaluation); its longest batch is "
                    f"{source.scan.worst[0].size}"
                )
        return lines

    def _trained_on(self) -> list[Source]:
        """Sources whose last batch an optimizer step followed, or that gave batches for several steps."""
        found = []
        for source in self.sources:
            steps = [step for step in source.in_steps if step < self._completed()]
            is_last = any(self._last_of_step[step] is source for step in steps)
            if source.first and (is_last or len(steps) > 1):
                found.append(source)
        return found

    def _main_source(self) -> Source | None:
        """The source with the most tokens that was trained on."""
        return max(self._trained_on(), key=Source.most_tokens, default=None)

"""Searches the data of a loader for its largest batches, without the script noticing.

A fork of this process makes the batches: it has the random states, samplers and data sets that the script has
at this moment. It reopens files, so that the script's positions do not move, and has no pipe or connection.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import pickle
import random
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from zerokit.console import note
from zerokit.patches import Patch, PrivateAttribute, put
from zerokit.rehearsal.report.report import BatchSize, Unit

CRITERIA: tuple[Callable[[BatchSize], int], ...] = (
    lambda size: size.tokens,
    lambda size: size.longest,
    lambda size: size.bytes,
)
"""What makes a batch the worst one: most tokens with the padding, the longest sequence, most bytes."""
_SECONDS_BETWEEN_MESSAGES = 0.2
_SECONDS_OF_SILENCE = 3.0
_GRACE_SECONDS = 1.0
"""For the batch that is being made as the time is up."""

_WORKER = Patch("torch.utils.data._utils.worker", "_worker_info", "look through data as one of its workers")
READ = tuple(
    PrivateAttribute(f"torch.utils.data.dataloader:{owner}", name, "find the largest batches")
    for owner, name in (
        ("_BaseDataLoaderIter", "_index_sampler"),
        ("_BaseDataLoaderIter", "_dataset_kind"),
        ("_SingleProcessDataLoaderIter", "_dataset_fetcher"),
    )
)
"""What is read of torch's iterators."""


@dataclass(frozen=True)
class Candidate:
    """A batch that is larger than those before it."""

    size: BatchSize
    number: int
    """Counted from 1 in the epoch of its rank."""
    rank: int
    """Of data parallelism."""
    data: bytes | None
    """The batch itself, pickled; None if it cannot be."""

    @property
    def batch(self) -> Any:
        """The batch, made again."""
        assert self.data is not None
        return pickle.loads(self.data)  # noqa: S301  written by a fork of this process


@dataclass
class Scan:
    """The batches of a loader in one epoch, as far as they were searched."""

    batches: int = 0
    """Of all ranks whose batches can be computed."""
    of: int | None = None
    """Of the epoch; None if unknown."""
    is_whole: bool = False
    seconds: float = 0.0
    batch_seconds: float | None = None
    """To read a batch in one process: the mean without the first one, which does what is done once."""
    worst: list[Candidate] = field(default_factory=list)
    """By the criteria, each batch once."""
    problem: str | None = None
    """Why the search failed."""


def scan(loader: Any, seconds: float, *, most: int | None = None) -> Scan:
    """Search an epoch of `loader`, a `torch.utils.data.DataLoader`, for at most `seconds`.

    The loader is left as it is. `most`: batches that each rank takes, if not all of the epoch.
    """
    began = time.monotonic()
    ours, theirs = Pipe(duplex=False)
    drawn = random.getstate()
    child = os.fork()
    if child == 0:
        try:
            random.setstate(drawn)  # a fork is given another one
            ours.close()
            _go_through(loader, theirs, began + seconds, most)
        finally:
            os._exit(0)
    theirs.close()
    found = Scan()
    best: dict[int, Candidate] = {}
    try:
        _listen(ours, began, seconds, found, best)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ours.close()
    found.worst = list({id(one): one for _, one in sorted(best.items())}.values())
    found.seconds = time.monotonic() - began
    return found


def _listen(ours: Connection, began: float, seconds: float, found: Scan, best: dict[int, Candidate]) -> None:
    """Receive what the fork sends, until it ends or the time is up; `best` is by place in the criteria."""
    is_noted = False
    while True:
        spent = time.monotonic() - began
        left = seconds + _GRACE_SECONDS - spent
        if ours.poll(max(0.0, min(left, _SECONDS_BETWEEN_MESSAGES))):
            try:
                received = pickle.loads(ours.recv_bytes())  # noqa: S301  of a fork of this process
            except EOFError:
                found.problem = "the process that did it ended"
                return
            if received is None:  # the last message
                return
            if isinstance(received, Candidate):
                for place, of in enumerate(CRITERIA):
                    if place not in best or of(received.size) > of(best[place].size):
                        best[place] = received
            else:
                found.batches, found.of, found.batch_seconds, found.is_whole, found.problem = received
        elif left <= 0:
            return
        if spent > _SECONDS_OF_SILENCE and not is_noted:
            is_noted = True
            batches = "the data" if found.of is None else f"{found.of:,} batches"
            note(f"Looking for the longest batches of {batches} (--scan 0 leaves this out)")


# ---- in the fork


def _go_through(loader: Any, answers: Connection, deadline: float, most: int | None) -> None:
    import torch

    _have_files_of_its_own(answers.fileno())
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads were not forked
    torch.set_num_threads(1)
    of, is_whole, problem = None, False, None
    taken: list[float] = []
    begun = received = time.monotonic()
    best = [-1] * len(CRITERIA)
    try:
        batches, of = _batches(loader, most)
        answers.send_bytes(pickle.dumps((0, of, None, False, None)))
        for rank, number, batch in batches:
            taken.append(time.monotonic() - begun)
            size = measure(batch)
            figures = [figure(size) for figure in CRITERIA]
            if any(figure > most for figure, most in zip(figures, best, strict=True)):
                best = [max(pair) for pair in zip(figures, best, strict=True)]
                answers.send_bytes(pickle.dumps(Candidate(size, number, rank, _pickled(batch))))
            begun = time.monotonic()
            if begun > deadline:
                break
            if begun - received > _SECONDS_BETWEEN_MESSAGES:
                received = begun
                answers.send_bytes(pickle.dumps((len(taken), of, mean_of_later(taken), False, None)))
        else:
            is_whole = True
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    answers.send_bytes(pickle.dumps((len(taken), of, mean_of_later(taken), is_whole, problem)))
    answers.send_bytes(pickle.dumps(None))


def mean_of_later(taken: list[float]) -> float | None:
    """The mean without the first, unless that is all there is; None of nothing."""
    counted = taken[1:] or taken
    return sum(counted) / len(counted) if counted else None


def _pickled(batch: Any) -> bytes | None:
    try:
        return pickle.dumps(batch)
    except Exception:  # whatever its classes raise
        return None


def _have_files_of_its_own(kept: int) -> None:
    """Reopen the files that this process shares with the script's; close pipes, sockets and output."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number in (kept, nothing):
            continue
        with suppress(OSError):
            kind = os.fstat(number).st_mode
            is_write_only = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if stat.S_ISREG(kind) and not is_write_only:
                position = os.lseek(number, 0, os.SEEK_CUR)
                own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
                os.lseek(own, position, os.SEEK_SET)
                os.dup2(own, number)
                os.close(own)
            elif number <= 2 or stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
                os.dup2(nothing, number)


def _batches(loader: Any, most: int | None) -> tuple[Iterator[tuple[int, int, Any]], int | None]:
    """Rank, number and batch of an epoch, of all ranks whose batches can be computed; and their number."""
    from torch.utils.data import dataloader as library

    workers = loader.num_workers
    put = loader.__dict__.update  # the loader refuses to be changed
    put(num_workers=0, prefetch_factor=None, persistent_workers=False, pin_memory=False, timeout=0)
    if workers:
        _be_worker(loader)
    iterator = library._SingleProcessDataLoaderIter(loader)
    own = int(os.environ.get("RANK", 0))
    if iterator._dataset_kind == library._DatasetKind.Iterable:
        return _numbered(own, iterator, most), _least(_length(loader), most)
    fetch = iterator._dataset_fetcher.fetch
    shard = loader.batch_sampler
    inner = getattr(shard, "batch_sampler", None)
    world = getattr(shard, "num_processes", None)
    if inner is not None and world is not None and not getattr(shard, "split_batches", False):
        # accelerate's BatchSamplerShard takes turns.
        turns = ((index % world, index // world + 1, fetch(indices)) for index, indices in enumerate(iter(inner)))
        of = _least(_length(inner), None if most is None else most * world)
        return itertools.islice(turns, of), of
    count = _least(_length(iterator._index_sampler) or _once(loader), most)
    sampler = getattr(loader.batch_sampler, "sampler", None) or loader.sampler
    replicas, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    if isinstance(replicas, int) and isinstance(rank, int) and count is not None:
        others = [other for other in range(replicas) if other != rank]
        return _of_ranks(sampler, [rank, *others], iterator, fetch, count), count * replicas
    return _numbered(own, iterator, count), count


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _numbered(rank: int, batches: Iterator[Any], most: int | None) -> Iterator[tuple[int, int, Any]]:
    for number, batch in enumerate(itertools.islice(batches, most), 1):
        yield rank, number, batch


def _of_ranks(
    sampler: Any, ranks: list[int], iterator: Any, fetch: Callable[[Any], Any], count: int
) -> Iterator[tuple[int, int, Any]]:
    """As a `DistributedSampler` shares batches out, which rank by rank draws the same numbers."""
    for rank in ranks:
        sampler.rank = rank
        for number, indices in zip(range(1, count + 1), iter(iterator._index_sampler), strict=False):
            yield rank, number, fetch(indices)


def _length(counted: Any) -> int | None:
    try:
        return len(counted)
    except Exception:  # whatever a data set without a length raises
        return None


def _once(loader: Any) -> int | None:
    """Batches in which a sampler without an end has given as many examples as there are."""
    examples = _length(loader.dataset)
    return math.ceil(examples / loader.batch_size) if examples and loader.batch_size else None


def _be_worker(loader: Any) -> None:
    """Data sets may ask which worker they are in, and be opened as it starts."""
    import numpy
    import torch
    from torch.utils.data._utils import worker

    information: Any = worker.WorkerInfo
    put(_WORKER, information(id=0, num_workers=1, seed=0, dataset=loader.dataset))
    if loader.worker_init_fn is not None:
        # It may seed what the sampler draws from, which is in another process.
        before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
        loader.worker_init_fn(0)
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])


# ---- the size of a batch

_DEEPEST = 6
"""Levels of lists and dictionaries that are looked into."""


class _Leaf:
    """A tensor, an array, a text, or a list of numbers."""

    def __init__(self, name: str, shape: tuple[int, ...], itemsize: int, unit: Unit) -> None:
        self.name = name
        self.shape = shape
        self.unit = unit
        self.elements = 1
        for size in shape:
            self.elements *= size
        self.bytes = self.elements * itemsize

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """How well it shows the length of a batch: the largest token ids, else the largest of all."""
        is_tokens = self.unit != "values" and len(self.shape) in (1, 2)
        return is_tokens and "input_ids" in self.name, is_tokens and self.shape[-1:] != (1,), self.bytes


def measure(batch: Any) -> BatchSize:
    """The size of `batch`: tensors and arrays, texts and lists of numbers in lists and dictionaries."""
    together: dict[str, list[_Leaf]] = {}
    for leaf in _leaves(batch, "", 0):
        together.setdefault(leaf.name, []).append(leaf)
    whole = sum(leaf.bytes for leaves in together.values() for leaf in leaves)
    rows = max((_rows(leaves) for leaves in together.values()), key=lambda one: one[0].rank, default=None)
    if rows is None:
        return BatchSize(shape=[], unit="values", tokens=0, bytes=0)
    leaf, elements = rows
    return BatchSize(shape=list(leaf.shape), unit=leaf.unit, tokens=elements, bytes=whole)


def _rows(leaves: list[_Leaf]) -> tuple[_Leaf, int]:
    """Examples that are not collated into one tensor yet, as one; and all their elements."""
    elements = sum(leaf.elements for leaf in leaves)
    if len(leaves) == 1:
        leaf = leaves[0]
        # One dimension of integers is one number for each example, unless it is called ids.
        is_row = len(leaf.shape) == 1 and "input_ids" not in leaf.name and leaf.unit == "tokens"
        return (_Leaf(leaf.name, leaf.shape, 1, "values") if is_row else leaf), elements
    longest = max(leaves, key=lambda leaf: leaf.elements)
    return _Leaf(longest.name, (len(leaves), *longest.shape), 1, longest.unit), elements


def _leaves(item: Any, name: str, depth: int) -> Iterator[_Leaf]:
    if depth > _DEEPEST or item is None:
        return
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if isinstance(item, str):
        yield _Leaf(name, (len(item),), 1, "characters")
    elif isinstance(shape, tuple) and dtype is not None:
        kind = str(dtype)
        unit: Unit = "tokens" if "int" in kind and "uint" not in kind and len(shape) <= 2 else "values"
        yield _Leaf(name, tuple(int(size) for size in shape), int(dtype.itemsize), unit)
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from _leaves(value, str(key), depth + 1)
    elif isinstance(item, list | tuple):
        if item and all(isinstance(value, int | float) for value in item):
            yield _Leaf(name, (len(item),), 8, "tokens" if isinstance(item[0], int) else "values")
        else:
            # Fields differ by their places, examples are alike; batches of fields may be in a list.
            are_fields = isinstance(item, tuple) or any(len(getattr(one, "shape", ())) > 1 for one in item)
            for place, value in enumerate(item):
                yield from _leaves(value, f"{name}.{place}" if are_fields else name, depth + 1)
    elif hasattr(item, "__dict__"):
        for key, value in vars(item).items():
            yield from _leaves(value, key, depth + 1)

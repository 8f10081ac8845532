"""Finds the best plans: for each offer the fastest settings that fit, then the best offers.

Simpler settings count as a little faster (`weighted`): a step that is known to a few percent is no reason to
offload or to choose a higher stage.

Settings of an offer differ in hours only, so that the fastest are also the cheapest. Two of each offer count:
the fastest that fit, and those that are faster and tight. They do not depend on prices or limits.

The search skips candidates without changing its answer. It relies on three properties, which tests check:
no step is faster than the roofline, memory grows as `Fitting` says, and a setting that only saves memory
(`savers`) never makes a step faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, Protocol

from zerokit.choices import OffloadDevice
from zerokit.errors import ZerokitError
from zerokit.garbage import paused_collection
from zerokit.hardware.cluster import DATA_PARALLEL, Parallelism
from zerokit.models.parallelism import SEQUENCE_SIZES, DividedModel, parallelism_misfit
from zerokit.planning.cache import remember, remembered
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.evaluate import Evaluator, Need, candidate_of
from zerokit.planning.job import PlanJob
from zerokit.planning.recipe import task_of
from zerokit.reporting.verdicts import NEGATIVE, Verdict
from zerokit.step_time import StepTime

_LARGEST_MICRO_BATCH = 64
_OFFLOADS: tuple[tuple[OffloadDevice, OffloadDevice | None], ...] = (
    *(("cpu", None), ("cpu", "cpu")),
    *(("nvme", None), ("nvme", "cpu"), ("nvme", "nvme")),
)
"""Of the optimizer and of parameters. Parameters on the host sometimes save a copy: none is always slower."""


_SIMPLER = 0.01
"""Share of a step that each stage of ZeRO, and each setting that saves memory, must save to be preferred."""


def weighted(seconds: float, candidate: Candidate) -> float:
    """The seconds by which the search compares candidates of an offer: longer with more settings."""
    savers = (
        candidate.gradient_checkpointing,
        candidate.chunked_loss,
        candidate.offload_optimizer,
        candidate.offload_param,
        candidate.parallel.group_size > 1,
        candidate.tiled_mlp,
        candidate.activation_offloading,
    )
    return seconds * (1 + _SIMPLER * (candidate.zero_stage + sum(map(bool, savers))))


class Costs(Protocol):
    """What the search asks; see :class:`zerokit.planning.evaluate.Evaluator`."""

    def memory(self, candidate: Candidate) -> Need:
        """The memory of a candidate on any card. Raises ZerokitError for unsupported settings."""

    def seconds(self, candidate: Candidate, offer: Offer) -> StepTime:
        """The seconds of a step. Raises ZerokitError for unsupported settings."""

    def least_seconds(self, candidate: Candidate, offer: Offer) -> float:
        """A lower bound of `seconds`."""


@dataclass(frozen=True)
class Space:
    """The settings that are tried."""

    global_batch_size: int
    has_nvme: bool = False
    wanted: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fixed settings by the names of `Candidate`; with some, all candidates that have them are tried."""
    parallel: Parallelism = DATA_PARALLEL
    """GPUs that share sequences or layers."""
    sequences: tuple[int, ...] = ()
    """Sizes of sequence parallelism that are tried where activations do not fit."""
    has_offload: bool = True
    saves_activations: bool = False
    """Whether the MLP in tiles and activations in host memory are tried, with checkpointing and chunked loss."""

    def micro_batches(self, num_gpus: int) -> list[int]:
        """Micro batches with which `num_gpus` make the global batch exactly; empty if there are none."""
        ranks, left = divmod(num_gpus, self.parallel.group_size)
        if left or not ranks or self.global_batch_size % ranks:
            return []
        per_rank = self.global_batch_size // ranks
        return [size for size in range(1, min(per_rank, _LARGEST_MICRO_BATCH) + 1) if per_rank % size == 0]

    def for_long_sequences(self, offer: Offer) -> Iterator[Space]:
        """Spaces that are tried in turn: sequences over more and more GPUs of a node; at last `saves_activations`."""
        last = self
        for size in self.sequences:
            if offer.gpus_per_node % size == 0:
                last = replace(self, parallel=Parallelism(sequence=size), sequences=())
                yield last
        if not self.wanted:
            yield replace(last, sequences=(), saves_activations=True)

    def fastest(self, offer: Offer) -> Iterator[Candidate]:
        """Candidates of an offer without settings that only save memory."""
        if self.wanted:
            everything = replace(self, wanted={}).all(offer)
            fixed = self.wanted.items()
            yield from (one for one in everything if all(getattr(one, name) == of for name, of in fixed))
            return
        for size in self.micro_batches(offer.num_gpus):
            for stage in range(4):
                if parallelism_misfit(self.parallel, zero_stage=stage) is not None:
                    continue
                yield Candidate(
                    num_gpus=offer.num_gpus,
                    gpus_per_node=offer.gpus_per_node,
                    zero_stage=stage,
                    micro_batch_size=size,
                    gradient_accumulation_steps=self.global_batch_size
                    // (self.parallel.data_ranks(offer.num_gpus) * size),
                    gradient_checkpointing=self.saves_activations,
                    chunked_loss=self.saves_activations,
                    hpz=stage == 3 and self.parallel == DATA_PARALLEL and 1 < offer.gpus_per_node < offer.num_gpus,
                    precision=offer.gpu.half_precision,
                    parallel=self.parallel,
                )

    def savers(self, candidate: Candidate) -> Iterator[Candidate]:
        """The same candidate with one more setting that only saves memory; none if settings are fixed."""
        if self.wanted:
            return
        if candidate.hpz:
            yield replace(candidate, hpz=False)
        if not candidate.gradient_checkpointing:
            yield replace(candidate, gradient_checkpointing=True)
        if not candidate.chunked_loss:
            yield replace(candidate, chunked_loss=True)
        if self.saves_activations and not candidate.tiled_mlp:
            yield replace(candidate, tiled_mlp=True)
        if self.saves_activations and not candidate.activation_offloading:
            yield replace(candidate, activation_offloading=True)
        if self.has_offload and candidate.zero_stage and candidate.offload_optimizer is None:
            for optimizer, param in _OFFLOADS if self.has_nvme else _OFFLOADS[:2]:
                if candidate.hpz and param == "nvme":
                    continue  # DeepSpeed 0.19.8 fails
                if (param is None and optimizer == "cpu") or candidate.zero_stage == 3:
                    yield replace(candidate, offload_optimizer=optimizer, offload_param=param)

    def all(self, offer: Offer) -> list[Candidate]:
        """Every candidate of an offer."""
        found = dict.fromkeys(self.fastest(offer))
        waiting = list(found)
        while waiting:
            new = [one for one in self.savers(waiting.pop()) if one not in found]
            found |= dict.fromkeys(new)
            waiting += new
        return list(found)


@dataclass(frozen=True)
class Configuration:
    """A candidate on an offer, with all that is known of it."""

    offer: Offer
    candidate: Candidate
    need: Need
    time: StepTime
    fit: Verdict


@dataclass(frozen=True)
class Miss:
    """A candidate that does not fit on an offer."""

    offer: Offer
    candidate: Candidate
    need: Need

    @cached_property
    def shortage(self) -> float:
        """The need as a share of the memory, of the GPU or the host: whichever is more."""
        host = self.offer.cluster.known_host_bytes
        of_host = 0.0 if host is None else (self.need.host_low + self.need.host_high) / 2 / host
        device = (self.need.device_low + self.need.device_high) / 2
        return max(device / self.offer.gpu.memory_bytes, of_host)

    @property
    def lacks_activations(self) -> bool:
        """Whether it would fit the GPU without its activations and their share of the allocator's unused memory."""
        need, activations = self.need, self.need.at_peak.get("activations", 0)
        unused = (need.device_high - need.device_low) / 2
        share = activations / max(sum(need.at_peak.values()), 1)
        without = need.device_low - activations + unused * (1 - share)
        return without <= self.offer.gpu.memory_bytes < need.device_low + unused


@dataclass
class OfferResult:
    """What was found for an offer."""

    offer: Offer
    fits: Configuration | None = None
    """The fastest that fits."""
    tight: Configuration | None = None
    """The fastest that is tight, if it is faster than all that fit."""
    misses: list[Miss] = field(default_factory=list)
    """Candidates that do not fit and would have been faster, with a lower bound of their need."""

    @property
    def configurations(self) -> list[Configuration]:
        """Those that were found."""
        return [one for one in (self.fits, self.tight) if one is not None]

    @property
    def nearest_miss(self) -> Miss | None:
        """The candidate that lacks least memory, with its need: a simpler one than those that fit."""
        plain = [one for one in self.misses if one.candidate.parallel == DATA_PARALLEL and self.configurations]
        return min(plain or self.misses, key=lambda miss: miss.shortage, default=None)

    def with_others(self, other: OfferResult) -> OfferResult:
        """The fastest of both."""
        fits = _fastest(self.fits, other.fits)
        tight = _fastest(self.tight, other.tight)
        if fits is not None and tight is not None and _fastest(tight, fits) is fits:
            tight = None
        return OfferResult(self.offer, fits, tight, [*self.misses, *other.misses])


def _fastest(*found: Configuration | None) -> Configuration | None:
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: weighted(one.time.seconds, one.candidate), default=None)


class Fitting:
    """Decides whether candidates fit, with few estimates.

    A candidate needs no less than with a smaller micro batch, without gradient accumulation, or in bf16 in
    place of fp16. Such estimates are shared.
    """

    def __init__(self, costs: Costs, space: Space) -> None:
        """Start without any estimate."""
        self._costs = costs
        self._space = space
        self._known: dict[Candidate, dict[tuple[int, int, bool], Need | None]] = defaultdict(dict)
        """Of the same settings: needs by `_sizes`; None: not supported."""

    def need(self, candidate: Candidate) -> Need | None:
        """The memory of a candidate; None if its settings are not supported."""
        known, sizes = self._known[candidate.of_any_size], _sizes(candidate)
        if sizes not in known:
            try:
                known[sizes] = self._costs.memory(candidate)
            except ZerokitError:
                known[sizes] = None
        return known[sizes]

    def obstacle(self, candidate: Candidate, offer: Offer) -> Miss | None:
        """The candidate with its own or a smaller micro batch, if one is known not to fit."""
        own = _sizes(candidate)
        for sizes, need in sorted(self._known[candidate.of_any_size].items(), key=lambda one: one[0]):
            is_less = all(less <= more for less, more in zip(sizes, own, strict=True))
            if is_less and need is not None and need.verdict(offer) in NEGATIVE:
                return Miss(offer, _with_micro_batch(candidate, sizes[0]), need)
        return None

    def one_sequence(self, offer: Offer, space: Space) -> Literal["fits", "activations", "no"]:
        """Whether a micro batch of one sequence fits with all states divided; if not, whether for its activations."""
        for one in replace(space, wanted={}).fastest(offer):
            if one.zero_stage == 3 and one.micro_batch_size == 1:
                smallest = replace(one, hpz=False, gradient_checkpointing=True, chunked_loss=True)
                need = self.need(smallest)
                if need is not None and need.verdict(offer) not in NEGATIVE:
                    return "fits"
                return "activations" if need and Miss(offer, smallest, need).lacks_activations else "no"
        return "no"

    def check(self, candidate: Candidate, offer: Offer) -> None:
        """Estimate the candidate, or a smaller micro batch that does not fit: bisect for that."""
        space = replace(self._space, parallel=candidate.parallel)
        sizes = [size for size in space.micro_batches(candidate.num_gpus) if size <= candidate.micro_batch_size]
        known = self._known[candidate.of_any_size]
        start = 1 + max((place for place, size in enumerate(sizes) if (size, 1, False) in known), default=-1)
        while start < len(sizes):
            middle = (start + len(sizes) - 1) // 2 if start else 0
            less = replace(candidate, micro_batch_size=sizes[middle], gradient_accumulation_steps=1)
            need = self.need(replace(less, precision="bf16"))
            if need is None or need.verdict(offer) in NEGATIVE:
                return
            start = middle + 1
        self.need(candidate)

    def settle(self, result: OfferResult) -> None:
        """Give the nearest miss its need in place of a lower bound."""
        while (nearest := result.nearest_miss) is not None:
            need = self.need(nearest.candidate)
            if need is nearest.need:
                break
            result.misses = [one for one in result.misses if one is not nearest]
            if need is not None:
                result.misses.append(replace(nearest, need=need))


def best_of_offer(offer: Offer, space: Space, costs: Costs, fitting: Fitting) -> OfferResult:
    """The fastest settings of an offer that fit, and faster ones that are tight.

    Where a sequence does not fit because of its activations, or the global batch has too few sequences for all GPUs,
    sequences are divided among more and more GPUs; if something fits with offload, only among so many that none is
    needed. If nothing fits then, other ways to keep fewer activations are tried.
    """
    result = _best_of_space(offer, space, costs, fitting)
    one_sequence = fitting.one_sequence(offer, space) if space.micro_batches(offer.num_gpus) else "activations"
    for longer in space.for_long_sequences(offer):
        if not longer.micro_batches(offer.num_gpus):
            continue
        if one_sequence != "activations" or (longer.saves_activations and result.fits):
            break
        one_sequence = fitting.one_sequence(offer, longer)
        if result.fits is None or one_sequence == "fits":
            longer = replace(longer, has_offload=result.fits is None)
            result = result.with_others(_best_of_space(offer, longer, costs, fitting))
    return result


def _best_of_space(offer: Offer, space: Space, costs: Costs, fitting: Fitting) -> OfferResult:
    """The fastest of a space.

    Candidates are tried in the order of their `weighted` seconds, or of a lower bound until those are known. A setting
    that saves memory is tried only after the candidate without it did not fit.
    """
    result, order = OfferResult(offer), count()
    heap: list[tuple[float, int, Candidate, StepTime | None]] = []
    seen: set[Candidate] = set()

    def push(candidates: Iterable[Candidate], bound: float) -> None:
        for one in candidates:
            if one not in seen:
                seen.add(one)
                least = max(bound, weighted(costs.least_seconds(one, offer), one))
                heappush(heap, (least, next(order), one, None))

    push(space.fastest(offer), 0.0)
    while heap and result.fits is None:
        bound, place, candidate, time = heappop(heap)
        if fitting.obstacle(candidate, offer) is None:
            if time is None:
                try:
                    time = costs.seconds(candidate, offer)
                except ZerokitError:
                    push(space.savers(candidate), bound)
                    continue
                heappush(heap, (max(bound, weighted(time.seconds, candidate)), place, candidate, time))
                continue
            fitting.check(candidate, offer)
        miss = fitting.obstacle(candidate, offer)
        need = None if miss is not None else fitting.need(candidate)
        if miss is not None:
            result.misses.append(miss)
        if need is not None and time is not None:
            found = Configuration(offer, candidate, need, time, need.verdict(offer))
            if found.fit == "fits":
                result.fits = found
            elif result.tight is None:
                result.tight = found
        push(space.savers(candidate), bound)
    fitting.settle(result)
    return result


@dataclass
class SearchResult:
    """What was found for all offers."""

    offers: list[OfferResult] = field(default_factory=list)
    undivided: list[Offer] = field(default_factory=list)
    """Offers among whose GPUs the global batch does not divide, also with a sequence on several GPUs."""
    is_complete: bool = True
    """False if the user stopped the search."""


def space_of(job: PlanJob) -> Space:
    """The settings that are tried for a job. ZerokitError: its parallelism does not fit its model."""
    model, sizes = DividedModel.of(job.model), list[int]()
    fixed = job.parallelism or DATA_PARALLEL
    if (misfit := parallelism_misfit(fixed, model=model, has_adapter=job.lora is not None)) is not None:
        raise misfit
    if job.parallelism is None and task_of(job) == "causal_lm":
        sizes = [size for size in SEQUENCE_SIZES if parallelism_misfit(Parallelism(size), model=model) is None]
    return Space(job.workload.global_batch_size, has_nvme=job.limits.has_nvme, parallel=fixed, sequences=tuple(sizes))


def search_or_remember(job: PlanJob, evaluator: Evaluator, progress: Callable[[str], None]) -> SearchResult:
    """The result of :func:`search`; that of an earlier run if at most prices, limits and the goal differ."""
    offers, space = job.offers, space_of(job)
    key = ["search", evaluator.cache_key, repr(space), [repr(replace(one, usd_per_gpu_hour=0.0)) for one in offers]]
    found: Any = remembered(key)
    with suppress(TypeError, LookupError, ValueError):  # none, or no result
        parts = [OfferResult(offers[place], *_from_json(offers[place], saved)) for place, saved in found["offers"]]
        return SearchResult(parts, [offers[place] for place in found["undivided"]])
    result = search(job, evaluator, space, progress=progress)
    if result.is_complete:
        saved = [(offers.index(one.offer), _to_json(one)) for one in result.offers]
        remember(key, {"offers": saved, "undivided": [offers.index(one) for one in result.undivided]})
    return result


def _to_json(result: OfferResult) -> list[Any]:
    """What is found for an offer, as JSON; of the misses the nearest, which alone is reported."""
    found = (result.fits, result.tight)
    miss = result.nearest_miss
    return [
        *(one and (asdict(one.candidate), astuple(one.need), astuple(one.time), one.fit) for one in found),
        miss and (asdict(miss.candidate), astuple(miss.need)),
    ]


def _from_json(offer: Offer, saved: list[Any]) -> tuple[Configuration | None, Configuration | None, list[Miss]]:
    """What :func:`_to_json` is given."""
    *found, miss = saved
    fits, tight = (
        one and Configuration(offer, candidate_of(one[0]), Need(*one[1]), StepTime(*one[2]), one[3]) for one in found
    )
    return fits, tight, [Miss(offer, candidate_of(miss[0]), Need(*miss[1]))] if miss else []


def search(
    job: PlanJob, costs: Costs, space: Space | None = None, *, progress: Callable[[str], None] = lambda words: None
) -> SearchResult:
    """Find the best settings of each offer; an interrupt (Ctrl-C) returns what was found so far."""
    space = space or space_of(job)
    fitting, result = Fitting(costs, space), SearchResult()
    try:
        with paused_collection():
            # What does not fit a large card does not fit a small one, which then needs no seconds.
            for offer in sorted(job.offers, key=lambda one: (one.num_gpus, -one.gpu.memory_bytes)):
                if not any(one.micro_batches(offer.num_gpus) for one in (space, *space.for_long_sequences(offer))):
                    result.undivided.append(offer)
                    continue
                progress(offer.words)
                result.offers.append(best_of_offer(offer, space, costs, fitting))
    except KeyboardInterrupt:
        result.is_complete = False
    return result


def _sizes(candidate: Candidate) -> tuple[int, int, bool]:
    """Micro batch, accumulation steps (from 3 on their number does not matter), and whether it is fp16."""
    steps = min(candidate.gradient_accumulation_steps, 3)
    return candidate.micro_batch_size, steps, candidate.precision == "fp16"


def _with_micro_batch(candidate: Candidate, size: int) -> Candidate:
    if size == candidate.micro_batch_size:
        return candidate
    sequences = candidate.micro_batch_size * candidate.gradient_accumulation_steps
    return replace(candidate, micro_batch_size=size, gradient_accumulation_steps=sequences // size)

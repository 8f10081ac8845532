"""The pruned search against brute force, with random memory and seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Parallelism
from zerokit.hardware.gpus import find_gpu
from zerokit.memory import Lora
from zerokit.models import load_model_shape
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.evaluate import Need
from zerokit.planning.job import Limits, PlanJob
from zerokit.planning.ranking import Ranked, choose_plans, front, rank
from zerokit.planning.search import Fitting, Miss, SearchResult, Space, best_of_offer, search, space_of, weighted
from zerokit.planning.workload import Workload
from zerokit.step_time import StepTime
from zerokit.units import GIB

_CARDS = tuple(map(find_gpu, ("V100-32GB", "RTX 4090", "A100-40GB-SXM", "H100-SXM", "H200")))
_NONE = Limits()
_MODEL = load_model_shape("HuggingFaceTB/SmolLM2-135M")


@dataclass
class RandomCosts:
    """Memory grows with the micro batch and accumulation; settings that save memory never lower seconds."""

    seed: int
    asked: int = 0
    longer: int = 1
    """Factor of activations; 1: they are never what does not fit."""
    _factors: dict[tuple[object, ...], float] = field(default_factory=dict)

    def _random(self, *key: object, low: float, high: float) -> float:
        return self._factors.setdefault(key, Random(f"{self.seed} {key}").uniform(low, high))

    def memory(self, candidate: Candidate) -> Need:
        self.asked += 1
        size = candidate.micro_batch_size
        steps = min(candidate.gradient_accumulation_steps, 3) + (candidate.precision == "fp16")
        chain = replace(candidate, micro_batch_size=0, gradient_accumulation_steps=0, precision="bf16")
        if self._random("unsupported", chain, low=0, high=1) < 0.05:
            raise ZerokitError("not supported")
        per_sequence = self._random("sequence", chain, low=0, high=10 * GIB) * self.longer
        states = self._random("states", chain, low=0, high=100 * GIB)
        low = int(states * (1 + 0.1 * steps) + per_sequence * size)
        host = int(self._random("host", chain, low=0, high=3000 * GIB))
        activations = int(per_sequence * size) if self.longer > 1 else 0
        at_peak = {"activations": activations, "optimizer_states": low - activations}
        return Need(low, int(1.1 * low), host, int(1.1 * host), 0, "backward", at_peak)

    def seconds(self, candidate: Candidate, offer: Offer) -> StepTime:
        savers = (
            candidate.gradient_checkpointing,
            candidate.chunked_loss,
            candidate.offload_optimizer,
            candidate.offload_param,
            candidate.zero_stage == 3 and not candidate.hpz,
        )
        seconds = self.least_seconds(candidate, offer) + self._random(
            offer.gpu.name, offer.num_gpus, candidate.zero_stage, candidate.micro_batch_size, low=0, high=3
        )
        for place, saver in enumerate(savers):
            if saver:
                cost = self._random("saver", place, offer.gpu.name, candidate.zero_stage, low=0, high=2)
                seconds += cost * (2 if saver == "nvme" else 1)
        return StepTime(0.9 * seconds, seconds, 1.2 * seconds, {"compute": seconds})

    def least_seconds(self, candidate: Candidate, offer: Offer) -> float:
        return 1000 / offer.gpu.tflops[offer.gpu.half_precision] / offer.num_gpus


def _offers(random: Random, number: int) -> tuple[Offer, ...]:
    cards = random.choices(_CARDS, k=number)
    counts = random.choices((1, 2, 4, 8, 16), k=number)
    return tuple(
        Offer(
            *(card, count, min(count, 8), round(random.uniform(0.5, 4), 2)),
            network_gbit_s=400.0 if count > 8 else None,
            is_network_assumed=count > 8 and random.random() < 0.3,
        )
        for card, count in zip(cards, counts, strict=True)
    )


def _job(seed: int, limits: Limits = _NONE, goal: str = "cost") -> PlanJob:
    random = Random(seed)
    workload = Workload(
        num_sequences=100_000, seq_len=512, global_batch_size=random.choice((8, 16, 24, 32)), packing=True
    )
    return PlanJob(
        model=_MODEL,
        model_name="tiny",
        workload=workload,
        offers=_offers(random, random.randint(1, 2)),
        limits=limits,
        goal=goal,  # type: ignore[arg-type]
    )


def _fastest(space: Space, offer: Offer, costs: RandomCosts) -> float | None:
    """The fewest weighted seconds of what fits."""
    found = []
    for candidate in space.all(offer):
        try:
            fits = costs.memory(candidate).verdict(offer) == "fits"
        except ZerokitError:
            continue
        found += [weighted(costs.seconds(candidate, offer).seconds, candidate)] * fits
    return min(found, default=None)


@pytest.mark.parametrize(
    ("parallelism", "stages"),
    [(Parallelism(), {0, 1, 2, 3}), (Parallelism(2), {3}), (Parallelism(1, 2), {0, 1, 2, 3})],
)
def test_stages_are_tried_that_train_with_the_groups(parallelism: Parallelism, stages: set[int]) -> None:
    space = Space(16, parallel=parallelism)
    assert {one.zero_stage for one in space.fastest(Offer(_CARDS[3], 8, 8, 1.0))} == stages


@pytest.mark.parametrize(
    ("model", "parallelism", "lora", "message"),
    [
        ("llama-3.1-8b", Parallelism(1, 2), Lora(16), "--tensor-parallel: .* does not go with peft"),
        ("gpt2", Parallelism(1, 2), None, "--tensor-parallel: .* does not go with gpt2"),
        ("EleutherAI/pythia-160m", Parallelism(2), None, "--sequence-parallel: .* does not go with gpt_neox"),
    ],
)
def test_groups_that_train_refuses_are_not_planned(
    model: str, parallelism: Parallelism, lora: Lora | None, message: str
) -> None:
    with pytest.raises(ZerokitError, match=message):
        space_of(replace(_job(1), model=load_model_shape(model), parallelism=parallelism, lora=lora))


@pytest.mark.parametrize(("states", "lacks"), [(18, True), (70, True), (75, False), (100, False)])
def test_what_the_allocator_leaves_unused_for_activations_goes_with_them(states: int, lacks: bool) -> None:
    """A sequence of 1M tokens: 2.5 TiB of activations, and a tenth more that is reserved."""
    activations = 2576 * GIB
    low = activations + states * GIB
    at_peak = {"activations": activations, "optimizer_states": states * GIB}
    need = Need(low, int(1.12 * low), 0, 0, 0, "backward", at_peak)
    offer = Offer(find_gpu("H100-SXM"), 8, 8, 0.0)
    assert Miss(offer, Candidate(8, 8, 3, 1, 1), need).lacks_activations == lacks


@examples(60)
@given(st.integers(0, 10**6))
def test_a_sequence_is_divided_where_its_activations_do_not_fit(seed: int) -> None:
    """Among no more GPUs than it needs. The answer is the fastest of all that was tried."""
    offer = Offer(_CARDS[seed % len(_CARDS)], 8, 8, 1.0)
    space, costs = Space(16, sequences=(2, 4)), RandomCosts(seed, longer=10)
    fitting = Fitting(costs, space)
    spaces = [space, *space.for_long_sequences(offer)]
    assert [(one.parallel.sequence, one.saves_activations) for one in spaces] == [(1, 0), (2, 0), (4, 0), (4, 1)]
    tried: list[float | None] = []
    for one in spaces:
        if one.saves_activations and any(tried):
            break
        if not any(tried) or fitting.one_sequence(offer, one) == "fits":
            tried.append(_fastest(replace(one, has_offload=not any(tried)), offer, costs))
        if fitting.one_sequence(offer, one) != "activations":
            break
    found = best_of_offer(offer, space, costs, fitting).fits
    expected = min((one for one in tried if one is not None), default=None)
    assert (found and weighted(found.time.seconds, found.candidate)) == expected


def _brute_force(job: PlanJob, costs: RandomCosts) -> dict[tuple[str, str], float]:
    """The fewest weighted seconds by offer and verdict, of all candidates."""
    space = Space(job.workload.global_batch_size, has_nvme=job.limits.has_nvme)
    found: dict[tuple[str, str], float] = {}
    for offer in job.offers:
        for candidate in space.all(offer):
            try:
                verdict = costs.memory(candidate).verdict(offer)
            except ZerokitError:
                continue
            key = (offer.words, verdict)
            seconds = weighted(costs.seconds(candidate, offer).seconds, candidate)
            found[key] = min(found.get(key, float("inf")), seconds)
    return found


@examples(200)
@given(st.integers(0, 10**6), st.booleans())
def test_the_search_finds_what_trying_everything_finds(seed: int, nvme: bool) -> None:
    job = _job(seed, Limits(has_nvme=nvme))
    costs = RandomCosts(seed)
    everything = _brute_force(job, RandomCosts(seed))
    for one in search(job, costs).offers:
        fits = everything.get((one.offer.words, "fits"))
        tight = everything.get((one.offer.words, "tight"))
        assert (one.fits and weighted(one.fits.time.seconds, one.fits.candidate)) == fits
        is_faster = tight is not None and (fits is None or tight < fits)
        assert (one.tight and weighted(one.tight.time.seconds, one.tight.candidate)) == (tight if is_faster else None)
        assert all(miss.need.verdict(one.offer) not in ("fits", "tight") for miss in one.misses)


def test_the_search_asks_for_few_estimates() -> None:
    """Of a chain of seven micro batches at most four, and none after the fastest candidate fits."""
    job = _job(1)
    space = Space(64)
    asked = []
    for seed in range(20):
        costs = RandomCosts(seed)
        best_of_offer(replace(job.offers[0], num_gpus=1, gpus_per_node=1), space, costs, Fitting(costs, space))
        asked.append(costs.asked)
    everything = len(space.all(replace(job.offers[0], num_gpus=1, gpus_per_node=1)))
    assert max(asked) < 0.75 * everything
    assert sum(asked) / len(asked) < 0.4 * everything


def _best(job: PlanJob, seed: int) -> Ranked | None:
    return next(iter(rank(job, search(job, RandomCosts(seed)))), None)


@examples(30)
@given(
    st.integers(0, 10**6),
    st.floats(1, 500),
    st.floats(1, 3000),
    st.floats(1, 3),
    st.sampled_from(("cost", "time")),
    st.sampled_from(("deadline", "budget", "price")),
)
def test_more_time_more_budget_or_a_cheaper_price_never_give_a_worse_plan(
    seed: int, deadline: float, budget: float, factor: float, goal: str, what: str
) -> None:
    before = _job(seed, Limits(deadline_hours=deadline, budget_usd=budget), goal)
    after = before
    if what == "price":
        cheaper = replace(before.offers[0], usd_per_gpu_hour=before.offers[0].usd_per_gpu_hour / factor)
        after = replace(before, offers=(cheaper, *before.offers[1:]))
    else:
        deadline, budget = (deadline * factor, budget) if what == "deadline" else (deadline, budget * factor)
        after = replace(before, limits=Limits(deadline_hours=deadline, budget_usd=budget))
    old, new = _best(before, seed), _best(after, seed)
    assert (old is None) == (new is None)
    if old is not None and new is not None:
        assert new.key(goal) <= old.key(goal)


@examples(30)
@example(239969)  # a tight configuration of the best offer beats another offer
@given(st.integers(0, 10**6))
def test_plans_are_the_best_and_others_of_the_front(seed: int) -> None:
    job = _job(seed)
    ranked = rank(job, search(job, RandomCosts(seed)))
    plans = choose_plans(ranked)
    assert len(plans) <= 5
    assert plans[:1] == ranked[:1]
    assert set(map(id, plans[1:])) <= set(map(id, front(ranked)))
    for one in front(ranked):
        assert not any(
            other.bill.hours.mid < one.bill.hours.mid and other.bill.cost.mid < one.bill.cost.mid for other in ranked
        )


def test_an_interrupt_returns_the_best_so_far() -> None:
    class Stopping(RandomCosts):
        def seconds(self, candidate: Candidate, offer: Offer) -> StepTime:
            if offer.num_gpus == 4:
                raise KeyboardInterrupt
            return super().seconds(candidate, offer)

    offers = tuple(Offer(_CARDS[4], count, count, 2.0) for count in (1, 2, 4))
    result = search(replace(_job(3), offers=offers), Stopping(3))
    assert not result.is_complete
    assert [one.offer.num_gpus for one in result.offers] == [1, 2]


def test_a_global_batch_that_does_not_divide_is_named() -> None:
    job = replace(_job(3), workload=Workload(num_sequences=1000, seq_len=512, global_batch_size=12))
    offers = tuple(Offer(_CARDS[4], count, count, 2.0) for count in (4, 8))
    result = search(replace(job, offers=offers), RandomCosts(3))
    assert [one.num_gpus for one in result.undivided] == [8]
    assert result.offers
    assert isinstance(result, SearchResult)

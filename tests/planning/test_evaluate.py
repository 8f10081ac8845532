"""Memory, seconds, bill and answer of real candidates."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.errors import ZerokitError
from zerokit.estimation import Question, Runs
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.memory import Lora, estimate
from zerokit.models import load_model_shape
from zerokit.planning.answer import answer, answer_parts, explain
from zerokit.planning.bill import Bill, num_trainable
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.evaluate import Evaluator
from zerokit.planning.job import Limits, PlanJob
from zerokit.planning.prices import CardPrice
from zerokit.planning.ranking import met
from zerokit.planning.recipe import ds_config_of
from zerokit.planning.report import Range
from zerokit.planning.search import SearchResult, Space, search, search_or_remember
from zerokit.planning.workload import Workload
from zerokit.reporting.terminal import plain_lines
from zerokit.reporting.verdicts import host_fit
from zerokit.step_time import StepTime

H100 = find_gpu("H100-SXM")
NODE = Offer(H100, 8, 8, 2.95)
WORKLOAD = Workload(num_sequences=244_141, seq_len=4096, global_batch_size=128, packing=True)


def _job(model: str = "llama-3.1-8b", **changed: object) -> PlanJob:
    settings = {"workload": WORKLOAD, "offers": (NODE,)} | changed
    return PlanJob(model=load_model_shape(model), model_name=model, **settings)  # type: ignore[arg-type]


def _evaluator(job: PlanJob) -> Evaluator:
    return Evaluator(job)


@pytest.mark.parametrize(
    ("changes", "lora"),
    [
        ({"zero_stage": 2, "micro_batch_size": 4, "gradient_accumulation_steps": 4}, None),
        ({"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}, None),
        ({"zero_stage": 1, "chunked_loss": True, "gradient_checkpointing": True}, Lora(16)),
    ],
)
def test_memory_is_what_zerokit_estimate_says(changes: dict[str, object], lora: Lora | None) -> None:
    given = {"micro_batch_size": 1, "gradient_accumulation_steps": 16} | changes
    candidate = Candidate(num_gpus=8, gpus_per_node=8, **given)  # type: ignore[arg-type]
    need = _evaluator(_job(lora=lora)).memory(candidate)
    chunked = given.pop("chunked_loss", False)
    cluster = Cluster(8, 8)
    for name in ("zero_stage", "offload_optimizer", "offload_param"):
        given.pop(name, None)
    question = Question(
        model=load_model_shape("llama-3.1-8b"),
        cluster=cluster,
        ds_config=ds_config_of(candidate, _job())[0],
        seq_len=4096,
        packing=True,
        lora=lora,
        chunked_loss="zerokit" if chunked else None,
        **given,  # type: ignore[arg-type]
    )
    expected = estimate(Runs().training_run(question))
    host = host_fit(cluster, expected.host.per_node_bytes, expected.nvme.per_node_bytes)
    assert (need.device_low, need.device_high) == (expected.device_low_bytes, expected.device_high_bytes)
    assert (need.host_low, need.host_high) == (host.needed_low_bytes, host.needed_high_bytes)
    assert sum(need.at_peak.values()) == expected.device.peak_bytes


@examples(12)
@given(
    st.sampled_from(("smollm2-135m", "qwen3-0.6b", "gpt2", "llama-3.2-1b")),
    st.sampled_from(Space(64).all(NODE)),
    st.sampled_from((128, 512)),
)
def test_memory_grows_with_the_micro_batch_accumulation_and_fp16(
    model: str, candidate: Candidate, seq_len: int
) -> None:
    evaluator = _evaluator(_job(model, workload=replace(WORKLOAD, seq_len=seq_len)))
    ones = [
        replace(candidate, micro_batch_size=size, gradient_accumulation_steps=steps)
        for size, steps in ((1, 1), (2, 1), (4, 1), (4, 2), (4, 3))
    ]
    if candidate.zero_stage:
        ones.append(replace(ones[-1], precision="fp16"))
    needs = [evaluator.memory(one) for one in ones]
    for before, after in pairwise(needs):
        assert before.device_low <= after.device_low
        assert before.device_high <= after.device_high
        assert before.host_high <= after.host_high


@pytest.mark.parametrize("card", ["H100-SXM", "A100-40GB-SXM", "RTX 4090"])
@pytest.mark.parametrize("number", [1, 8, 16])
def test_settings_that_save_memory_are_never_faster_and_no_step_beats_the_roofline(card: str, number: int) -> None:
    network = 400.0 if number > 8 else None
    offer, space = Offer(find_gpu(card), number, min(number, 8), 1.0, network_gbit_s=network), Space(32)
    evaluator = _evaluator(_job("qwen3-0.6b", workload=replace(WORKLOAD, global_batch_size=32)))
    for candidate in space.all(offer)[::7]:
        least = evaluator.least_seconds(candidate, offer)  # before the seconds are known
        seconds = evaluator.seconds(candidate, offer).seconds
        assert 0 < least <= seconds
        for saver in space.savers(candidate):
            assert evaluator.seconds(saver, offer).seconds >= 0.999 * seconds, saver.words


def test_a_search_is_repeated_only_if_more_than_prices_and_limits_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = replace(NODE, num_gpus=1, gpus_per_node=1)
    owned = replace(small, usd_per_gpu_hour=0.0)
    job = _job("llama-3.2-1b", offers=(NODE, small, owned, replace(NODE, num_gpus=3, gpus_per_node=3)))
    evaluator = Evaluator(job)
    first = search_or_remember(job, evaluator, print)
    everything = sum(len(Space(128).all(offer)) for offer in (NODE, small))
    assert len(evaluator._needs) < 0.1 * everything
    assert len(evaluator._times) < 0.3 * everything
    monkeypatch.setattr(Evaluator, "run", None)  # would compute
    cheap = {offer: replace(offer, usd_per_gpu_hour=1.0) for offer in job.offers}
    other = replace(job, offers=tuple(cheap.values()), limits=Limits(budget_usd=9), goal="time")
    again = search_or_remember(other, Evaluator(other), print)
    for before, after in zip(first.offers, again.offers, strict=True):
        assert after.offer == cheap[before.offer]
        assert before.configurations
        for old, new in zip(
            (*before.configurations, before.nearest_miss), (*after.configurations, after.nearest_miss), strict=True
        ):
            assert new == (old and replace(old, offer=after.offer))
    assert again.undivided == [cheap[one] for one in first.undivided] != []
    changed = (
        replace(job, workload=replace(WORKLOAD, seq_len=2048)),
        replace(job, offers=(NODE, replace(small, host_bytes=1 << 40))),
        replace(job, offers=(NODE, small)),
    )
    for one in changed:
        with pytest.raises(TypeError):
            search_or_remember(one, Evaluator(one), print)


def test_results_of_another_job_are_not_remembered() -> None:
    job = _job("smollm2-135m")
    changed = (
        replace(job, workload=replace(WORKLOAD, global_batch_size=64)),
        replace(job, lora=Lora(16)),
        replace(job, lora=Lora(16), load_in_4bit=True),
        # Only the config tells: repr of a shape leaves it out.
        replace(job, model=replace(job.model, config={**job.model.config, "hidden_act": "gelu_new"})),
        replace(job, recipe={"training": {"max_grad_norm": 0.5}}),
    )
    keys = [_evaluator(one).cache_key for one in (job, *changed)]
    assert all(one != other for place, one in enumerate(keys) for other in keys[:place])


def test_results_of_another_card_in_a_hardware_file_are_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text("{}")
    keys = []
    for rate in (900.0, 90.0):
        card = replace(H100, name="X1", tflops={"bf16": rate})
        job = _job(offers=(replace(NODE, gpu=card),))
        evaluator = _evaluator(job)
        evaluator._job = replace(job, hardware=file)
        keys.append(evaluator.cache_key)
    assert keys[0] != keys[1]


def test_a_free_option_that_misses_the_deadline_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = replace(NODE, num_gpus=1, gpus_per_node=1, usd_per_gpu_hour=0.0)
    job = _job("smollm2-135m", offers=(NODE, own), limits=Limits(deadline_hours=3))
    costs = _evaluator(job)
    report = answer(job, search(job, costs), {}, command="")
    assert (report.plans[0].num_gpus, report.plans[0].meets.deadline) == (8, "meets")
    assert "rent 8 x H100-SXM" in "\n".join(plain_lines(answer_parts(report)))
    assert "rent 8" not in "\n".join(plain_lines(answer_parts(report.model_copy(update={"considered": []}))))


def test_the_bill_adds_up() -> None:
    job = _job(num_evaluations=2, num_checkpoints=3)
    bill = Bill(job, NODE, StepTime(0.9, 1.0, 1.5, {}), num_trainable(job))
    hours = {one.item: one.hours for one in bill.items}
    assert hours["training"] == pytest.approx(WORKLOAD.steps / 3600)
    assert sum(hours.values()) == pytest.approx(bill.hours.mid)
    assert sum(one.cost_usd for one in bill.items) == pytest.approx(bill.cost.mid)
    assert bill.cost.mid == pytest.approx(8 * 2.95 * bill.hours.mid)
    assert bill.hours.low < bill.hours.mid < bill.hours.high
    assert num_trainable(replace(job, lora=Lora(16))) == 6_815_744


def test_a_limit_is_met_by_the_slow_end_and_likely_by_the_middle() -> None:
    figure = Range(low=1, mid=2, high=3)
    assert [met(figure, limit) for limit in (None, 3, 2, 1.9)] == ["none", "meets", "likely", "misses"]


@pytest.fixture(scope="module")
def small() -> tuple[PlanJob, SearchResult, Evaluator]:
    """8B on 1B tokens with a budget of $20 (research/planning.md, row 12)."""
    offers = (Offer(H100, 1, 1, 2.95), NODE)
    job = _job(limits=Limits(budget_usd=20), offers=offers, setup_hours=0.0, num_checkpoints=0)
    evaluator = _evaluator(job)
    return job, search(job, evaluator), evaluator


PRICES = {H100.name: CardPrice(H100, 2.95, "2026-11-28", "test", 1.29, 12.29)}


def test_a_budget_below_the_roofline_is_impossible(small: tuple[PlanJob, SearchResult, Evaluator]) -> None:
    job, result, _ = small
    report = answer(job, result, PRICES, command="zerokit plan llama-3.1-8b --budget 20")
    assert not report.meets_limits
    bound = "Even at the peak of H100-SXM the matmuls alone cost $37."
    assert report.verdict.startswith(f"Nothing meets a budget of $20. {bound} The nearest: rent")
    assert report.plans[0].meets.budget == "misses"
    assert report.plans[0].cost_usd.low > 37
    text = "\n".join(plain_lines(answer_parts(report)))
    for words in ("Why not", "H100-SXM 2.95 1.29 to 12.29 2026-11-28 test", "--budget 20"):
        assert words in " ".join(text.split())
    assert {one.num_gpus for one in report.considered} == {1, 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8xH100-SXM stage 0 mbs 16", "does not fit: needs"),
        ("1 x h100-sxm, ZeRO-0, micro batch 2", "GiB of 79.2 GiB"),
        ("8 H100-SXM zero3 mbs=1", "8 x H100-SXM, ZeRO-3, micro batch 1"),
        ("8xH100-SXM mbs 3", "micro batch 3 does not divide the global batch"),
    ],
)
def test_explains_why_an_option_lost(small: tuple[PlanJob, SearchResult, Evaluator], text: str, words: str) -> None:
    assert words in explain(text, *small)


@pytest.mark.parametrize("text", ["", "stage 3", "8", "H100", "4xH100-SXM", "8xH1000", "8xH100-SXM nonsense"])
def test_an_option_that_cannot_be_read_is_refused(small: tuple[PlanJob, SearchResult, Evaluator], text: str) -> None:
    job, result, evaluator = small
    with pytest.raises(ZerokitError):
        explain(text, job, result, evaluator)

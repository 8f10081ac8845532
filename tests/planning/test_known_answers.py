"""Questions of real people whose answers are known: measured, reported, or counted from published runs.

The number of each question is that of the sources: meta-llama/llama#389, InternLM/xtuner#842,
deepspeedai/DeepSpeed#3448, pytorch/torchtune#1871, ZHZisZZ/dllm#9 and #102, simplescaling/s1#13, #111,
#125, Tulu 3 (section 4.3), Sky-T1, minosvasilias/godot-dodo#11, meta-llama/llama#973.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, zerokit
from zerokit.hardware.cluster import Parallelism
from zerokit.memory import Lora
from zerokit.models import ModelShape, load_model_shape
from zerokit.planning.answer import answer, explain
from zerokit.planning.bill import Bill, num_trainable
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.data import workload_of
from zerokit.planning.evaluate import Evaluator, Need
from zerokit.planning.job import Limits, PlanJob
from zerokit.planning.offers import offers
from zerokit.planning.prices import load_prices
from zerokit.planning.recipe import recipe_of
from zerokit.planning.report import Parallel, PlanReport
from zerokit.planning.search import Configuration, Fitting, OfferResult, Space, best_of_offer, search
from zerokit.planning.workload import Workload
from zerokit.step_time import StepTime
from zerokit.units import GIB

__all__ = ["zerokit"]  # the fixture

pytestmark = pytest.mark.slow

PRICES = Path(__file__).parent / "prices" / "frozen.csv"
FAST = 3200.0
ON_GPU: dict[str, Any] = {"zero_stage": 3, "offload_optimizer": None, "gradient_checkpointing": True}
"""What needs the least memory of one GPU without offload, but for the micro batch and the loss."""


@cache
def _shape(model: str) -> ModelShape:
    return load_model_shape(model)


def _job(model: str, workload: Workload, have: str = "", **changes: Any) -> PlanJob:
    """A job on GPUs that the user has, or that are rented: `names`, `max_gpus`, `network`, `host`."""
    found = offers(
        load_prices((), PRICES),
        have=have or None,
        names=changes.pop("names", ()),
        max_gpus=changes.pop("max_gpus", 64),
        host_bytes=changes.pop("host", None),
        network_gbit_s=changes.pop("network", FAST),
    )
    only = changes.pop("only", None)
    chosen = tuple(one for one in found.offered if only is None or one.num_gpus in only)
    return PlanJob(model=_shape(model), model_name=model, workload=workload, offers=chosen, **changes)


def _examples(model: str, count: int, mean: int, p95: int, seq_len: int, batch: int, epochs: float) -> Workload:
    return workload_of(
        _shape(model),
        num_examples=count,
        mean_tokens=mean,
        p95_tokens=p95,
        seq_len=seq_len,
        global_batch_size=batch,
        epochs=epochs,
    )


def _full(seq_len: int, batch: int = 16) -> Workload:
    return Workload(num_sequences=1000, seq_len=seq_len, global_batch_size=batch)


def _found(job: PlanJob, offer: Offer, **wanted: Any) -> OfferResult:
    """The best of the settings that are wanted; of all without any."""
    costs, space = Evaluator(job), Space(job.workload.global_batch_size, wanted=wanted)
    return best_of_offer(offer, space, costs, Fitting(costs, space))


def _need(job: PlanJob, **settings: Any) -> Need:
    """The memory of micro batches on the largest offer, accumulated over 4."""
    offer = job.offers[-1]
    both = {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "precision": offer.gpu.half_precision, **settings}
    candidate = Candidate(num_gpus=offer.num_gpus, gpus_per_node=offer.gpus_per_node, **both)
    return Evaluator(job).memory(candidate)


def _plan(job: PlanJob) -> PlanReport:
    costs = Evaluator(job)
    return answer(job, search(job, costs), load_prices((), PRICES))


def _gib(low: int, high: int) -> tuple[float, float]:
    return round(low / GIB, 1), round(high / GIB, 1)


def test_1_how_many_80_gb_cards_for_70b() -> None:
    """ "Roughly 16", somebody said; 16 ran out of memory."""
    job = _job("llama-3.1-70b", _full(4096, 48), names=["h100,h200,b200"], max_gpus=24)
    by_words = {(one.gpu.name, one.num_gpus): one for one in job.offers}
    fits = {
        words: _found(job, by_words[words], **ON_GPU, chunked_loss=False).fits is not None
        for words in [("H100-SXM", 16), ("H100-SXM", 24), ("H200", 8), ("B200", 8)]
    }
    assert list(fits.values()) == [False, True, False, True]
    sixteen = _job("llama-3.1-70b", _full(4096, 48), names=["h100"], max_gpus=16)
    need = _need(sixteen, zero_stage=3, gradient_checkpointing=True)
    assert _gib(need.device_low, need.device_high) == pytest.approx((79.6, 90.9), abs=0.2)
    assert need.verdict(sixteen.offers[-1]) == "does not fit"
    eight = _found(job, by_words["H100-SXM", 8], zero_stage=3, offload_optimizer="cpu", offload_param=None)
    assert eight.fits is not None
    assert _gib(eight.fits.need.host_low, eight.fits.need.host_high) == (1334.5, 1364.5)  # 1.30 to 1.33 TiB


def test_a_sequence_of_128k_tokens_is_divided_among_gpus() -> None:
    """Only as far as needed; the recipe trains so."""
    job = _job("llama-3.1-8b", _full(131072), have="8xh100", only=(8,))
    report = _plan(job)
    plan = report.plans[0]
    assert (plan.zero_stage, plan.offload.optimizer, plan.parallel) == (3, None, Parallel(data=4, sequence=2))
    assert "sequence parallelism would divide its activations" in report.rejected[0].reason
    assert recipe_of(plan, job, plan.ds_config)["parallel"] == {"sequence": 2}
    batch = plan.micro_batch_size * plan.gradient_accumulation_steps * plan.parallel.data
    assert batch == 16
    costs = Evaluator(job)
    lost = explain("8xH100 sequence parallelism 4 checkpointing", job, search(job, costs), costs)
    assert re.search(r"sequence parallelism 4, checkpointing.* takes (about|1\.\d times) as long", lost)
    fixed = _plan(replace(job, parallelism=Parallelism(8)))
    assert fixed.plans[0].parallel == Parallel(data=1, sequence=8)


def test_2_33b_with_600_gb_of_host_memory() -> None:
    """It ran out; 750 to 800 GB work."""
    job = _job("llama-1-30b", _full(2048), have="8xA100-40", host=600 * 10**9, only=(8,))
    need = _need(job, **{**ON_GPU, "offload_optimizer": "cpu"}, offload_param="cpu")
    assert _gib(need.host_low, need.host_high) == pytest.approx((700, 730), abs=1)
    report = _plan(job)
    assert not report.plans
    assert "host memory" in report.verdict


def test_3_70b_on_8_4090_with_500_gb_of_host_memory() -> None:
    job = _job("llama-3.1-70b", _full(2048), have="8x4090", host=500 * 10**9, only=(8,))
    need = _need(job, **{**ON_GPU, "offload_optimizer": "cpu"}, offload_param="cpu")
    assert _gib(need.host_low, need.host_high) == pytest.approx((1.70 * 1024, 1.73 * 1024), rel=0.005)
    report = _plan(job)
    assert not report.plans
    assert report.verdict.startswith("Nothing fits.")
    assert "--lora-rank" in report.verdict


def test_4_8b_on_two_a100_40gb() -> None:
    """ZeRO-2 with offload ran out of memory as it allocated 14.9 GiB when the optimizer was made."""
    job = _job("llama-3.1-8b", _full(512, 64), have="2xA100-40", only=(2,))
    stage_2 = _need(job, zero_stage=2, micro_batch_size=2, offload_optimizer="cpu", gradient_checkpointing=True)
    assert stage_2.phase == "init"
    assert stage_2.at_peak["buffers"] / GIB == pytest.approx(14.9, abs=0.1)
    stage_3 = _need(job, zero_stage=3, micro_batch_size=2, offload_optimizer="cpu", gradient_checkpointing=True)
    assert _gib(stage_3.device_low, stage_3.device_high) == (12.7, 16.0)
    assert _found(job, job.offers[-1], zero_stage=2, offload_optimizer=None).fits is None


@pytest.mark.parametrize(
    ("seq_len", "num_gpus", "chunked_loss", "verdict"),
    [
        (4096, 8, False, "tight"),
        (20480, 8, False, None),
        (20480, 8, True, None),
        (4096, 16, False, "fits"),
        (32768, 16, False, None),
        (32768, 16, True, "fits"),
    ],
)
def test_5_32b_for_reasoning(seq_len: int, num_gpus: int, chunked_loss: bool, verdict: str | None) -> None:
    """8 x H100 ran out; 16 ran 20k tokens, and not 32k, which the loss in chunks makes possible."""
    job = _job("qwen2.5-32b", _full(seq_len, 16), have="2x8xH100", only=(num_gpus,))
    found = _found(job, job.offers[-1], **ON_GPU, chunked_loss=chunked_loss)
    best = found.fits or found.tight
    assert (None if best is None else best.fit) == verdict


_DLLM = ("llama-3-8b", 939_344, 500, 1000, 1024, 128, 5)


def test_6_more_gpus_are_slower_on_a_slow_network() -> None:
    """8 GPUs took 44.24 h, 16 59.45 h, 32 29.90 h and 64 17.22 h. Lengths and network are assumed."""
    workload = _examples(*_DLLM)
    job = _job("llama-3-8b", workload, names=["a100-80"], network=300.0, only=(8, 16, 32, 64))
    settings = {"zero_stage": 2, "micro_batch_size": 2, "offload_optimizer": None, "chunked_loss": True}
    hours = []
    for offer in job.offers:
        found = _found(job, offer, **settings, gradient_checkpointing=True).fits
        assert found is not None
        hours.append(Bill(job, offer, found.time, num_trainable(job)).hours.mid)
    eight, sixteen, *more = hours
    assert sixteen > eight
    assert all(time < 40 for time in more)
    for predicted, measured in zip(hours, (44.24, 59.45, 29.90, 17.22), strict=True):
        assert predicted == pytest.approx(measured, rel=0.35)
    slow = _job("llama-3-8b", workload, names=["a100-80"], network=25.0, only=(8, 16), goal="time")
    assert {plan.num_gpus for plan in _plan(slow).plans} == {8}


def test_7_hours_that_depend_on_the_network_are_given_for_both_ends() -> None:
    """The same run on 16 x H100 took 26 min, 3 h and 18 h."""
    workload = _examples("qwen2.5-32b", 1000, 8000, 20_000, 20_480, 16, 5)
    job = _job("qwen2.5-32b", workload, have="2x8xH100", only=(16,), network=None, limits=Limits(deadline_hours=8))
    report = _plan(job)
    assert {one.network_gbit_s for one in report.considered} == {100.0, 3200.0}
    assert "That depends on the network" in report.verdict
    assert "at 100 Gbit/s" in report.verdict
    assert "--network" in report.verdict


@pytest.mark.parametrize(
    ("model", "num_gpus", "networks", "gpu_hours"),
    [("llama-3.1-8b", 32, (FAST, FAST), 192), ("llama-3.1-70b", 64, (100.0, FAST), 3200)],
)
def test_8_tulu_3(model: str, num_gpus: int, networks: tuple[float, float], gpu_hours: float) -> None:
    """939,344 prompts, 2 epochs, batches of 128: 1.47 s and 12.3 s a step, ZeRO-3 with micro batches of 1.

    Lengths are assumed. The 70B model took longer than it would on the fastest network.
    """
    workload = _examples(model, 939_344, 700, 2200, 4096, 128, 2)
    assert workload.steps == 14_677
    ends = []
    for network in networks:
        job = _job(model, workload, names=["h100"], only=(num_gpus,), network=network)
        found = _found(job, job.offers[0], **ON_GPU, micro_batch_size=1, chunked_loss=False).fits
        assert found is not None
        ends.append(_hours(job, found))
    slow, fast = ends
    assert fast.low * num_gpus < gpu_hours < slow.high * num_gpus


def _hours(job: PlanJob, found: Configuration) -> Any:
    return Bill(job, found.offer, found.time, num_trainable(job)).hours


def test_9_sky_t1() -> None:
    """17k examples, 3 epochs, batches of 96: 19 h on 8 x H100 with ZeRO-3 offload, 129 s a step."""
    workload = _examples("qwen2.5-32b", 17_000, 4500, 12_000, 16_384, 96, 3)
    assert workload.steps == 531
    job = _job("qwen2.5-32b", workload, names=["h100"], only=(8,))
    found = _found(job, job.offers[0], offload_optimizer="cpu", offload_param="cpu").fits
    assert found is not None
    assert _hours(job, found).low < 19
    assert found.time.parts["host_optimizer"] + found.time.parts["copies"] > 10


def test_10_set_up_is_billed_apart() -> None:
    """StarCoder-15B: 15.5 h on 8 x A100-80 at $12 an hour, plus a couple of hours to set it up."""
    workload = _examples("starcoder-15b", 60_000, 300, 600, 2048, 128, 3)
    job = _job("starcoder-15b", workload, names=["a100-80"], only=(8,), setup_hours=2.0)
    measured = 15.5 * 3600 / workload.steps
    offer = Offer(job.offers[0].gpu, 8, 8, 12 / 8)
    bill = Bill(job, offer, StepTime(measured, measured, measured, {}), num_trainable(job))
    items = {item.item: item.cost_usd for item in bill.items}
    assert items["training"] == pytest.approx(186)
    assert items["set-up"] == pytest.approx(24)
    assert sum(items.values()) == pytest.approx(bill.cost.mid)


def test_11_13b_on_one_h100() -> None:
    workload = _examples("llama-2-13b", 1_000_000, 550, 600, 1024, 128, 1)
    full = _job("llama-2-13b", workload, names=["h100"], only=(1, 2, 4))
    assert _found(full, full.offers[0], offload_optimizer=None).configurations == []
    need = _need(_job("llama-2-13b", workload, names=["h100"], only=(1,)), **ON_GPU, chunked_loss=True)
    assert _gib(need.device_low, need.device_high) == pytest.approx(
        (200, 225), rel=0.03
    )  # of a ds_config with other buckets
    assert _found(full, full.offers[2], offload_optimizer=None).fits is not None
    adapters = _plan(_job("llama-2-13b", workload, names=["h100"], only=(1,), lora=Lora(16, "all-linear")))
    assert adapters.verdict.startswith("Rent 1 x H100-SXM for ")
    assert adapters.plans[0].offload.optimizer is None


def test_12_a_budget_that_no_settings_can_meet(zerokit: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """12.6 GPU-hours at the peak of an H100 are $37."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ("--gpu", "h100", "--max-gpus", "8", "--prices", PRICES, "--rehearse", "0", "--no-input")
    code, out, _ = zerokit("plan", "llama-3.1-8b", "--tokens", "1e9", "--budget", "20", *words)
    assert code == 1
    assert out.startswith("Nothing meets a budget of $20. ")
    assert "the matmuls alone cost $37." in out
    assert re.search(r"The nearest: rent \d x H100-SXM for ", out)
    bill = out.partition("Bill of the first plan")[2].partition("Why not")[0].split()
    assert {"set-up", "download", "checkpoints", "training"} < set(bill)

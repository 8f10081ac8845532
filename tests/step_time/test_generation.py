"""Memory, seconds and modes of generation by formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.memory.generation import GenerationRun, cached_layers, cached_widths, generation_memory
from zerokit.models import load_model_shape
from zerokit.step_time.generation import MODES, generation_time, judge_modes, reasons, traffic_per_pass
from zerokit.units import GIB

A100 = find_gpu("a100-80gb")


def run(num_gpus: int = 8, name: str = "llama-3.1-8b", **given: Any) -> GenerationRun:
    sizes: dict[str, Any] = {"mode": "replicated", "prompt_tokens": 512, "new_tokens": 512, "batch_size": 4} | given
    return GenerationRun(model=load_model_shape(name), cluster=Cluster(num_gpus, 8, A100), **sizes)


@pytest.mark.parametrize(
    ("name", "widths", "layers"),
    [("llama-3.1-8b", (1024, 1024), 32), ("deepseek-v3", (128 * 192, 128 * 128), 61), ("gpt2", (768, 768), 12)],
)
def test_the_cache_of_a_token(name: str, widths: tuple[int, int], layers: int) -> None:
    model = load_model_shape(name)
    assert (cached_widths(model), cached_layers(model)) == (widths, layers)


def test_each_mode_divides_what_it_says() -> None:
    memory = {mode: generation_memory(run(mode=mode)) for mode in (*MODES, "gathered")}
    weights = 2 * run().model.num_parameters
    assert memory["replicated"].weights == pytest.approx(weights, rel=0.001)
    assert memory["gathered"].weights == pytest.approx(weights * 9 / 8, rel=0.001)
    assert memory["sharded"].weights == pytest.approx(weights / 8, rel=0.01)
    assert memory["offloaded"].weights < 0.001 * weights
    assert memory["offloaded"].host.needed_low_bytes > weights
    assert memory["replicated"].kv_cache == 2 * 2 * 4 * 1024 * 1024 * 32
    assert memory["tensor"].kv_cache == memory["replicated"].kv_cache // 8
    assert traffic_per_pass(run(mode="sharded")) == weights * 7 // 8
    assert traffic_per_pass(run(mode="offloaded")) == weights


@examples(12)
@example(mode="tensor", gib=18, prompt=4000)
@given(mode=st.sampled_from(MODES), gib=st.integers(8, 80), prompt=st.sampled_from([16, 512, 4000]))
def test_the_largest_batch_fits_and_little_more_does_not(mode: Any, gib: int, prompt: int) -> None:
    asked = run(mode=mode, prompt_tokens=prompt, batch_size=1)
    (judged,) = judge_modes(asked, gib * GIB, modes=[mode])
    if judged.largest_batch is None:
        assert judged.reason.startswith("needs")
        return
    needed = [
        generation_memory(replace(asked, batch_size=int(judged.largest_batch * more) + number)).high
        for more, number in ((1, 0), (1.05, 2))
    ]
    assert needed[0] <= gib * GIB
    assert judged.largest_batch == 4096 or needed[1] > gib * GIB


def test_the_fastest_mode_that_fits_comes_first() -> None:
    cluster = Cluster(8, 8, A100)
    judged = judge_modes(run(name="llama-3.1-70b"), 80 * GIB, costs=CardCosts(cluster))
    assert judged[0].run.mode == "tensor"
    assert reasons(judged).startswith("replicated: needs ")
    rates = [one.time.tokens_per_second for one in judged if one.time and not one.reason]
    assert rates == sorted(rates, reverse=True)
    times = [generation_time(run(mode=mode), CardCosts(cluster)).pass_seconds for mode in ("replicated", "sharded")]
    assert times[0] < times[1] < 10 * times[0]


def test_a_prompt_has_logits_for_its_last_token_alone() -> None:
    model, costs = run().model, CardCosts(run().cluster)
    large = load_model_shape({**model.config, "vocab_size": 8 * (model.vocab_size or 0)})
    few, many = (generation_time(replace(run(), model=one, new_tokens=2), costs) for one in (model, large))
    added = many.prefill_seconds - few.prefill_seconds
    assert 0 < added < 2 * (many.pass_seconds - few.pass_seconds)


def test_ranks_without_sequences_make_no_tokens() -> None:
    costs = CardCosts(Cluster(8, 8, A100))
    full, alone, rounds = (generation_time(run(sequences=count), costs).tokens_per_second for count in (None, 1, 64))
    assert alone == pytest.approx(full / 32)
    assert rounds == pytest.approx(full)
    judged = {one.run.mode: one for one in judge_modes(run(batch_size=1, sequences=3), 80 * GIB, costs=costs)}
    assert judged["tensor"].run.batch_size == 3
    assert judged["replicated"].time is not None
    assert judged["replicated"].time.tokens_per_second == pytest.approx(
        3 / 8 * generation_time(run(batch_size=1), costs).tokens_per_second
    )

from __future__ import annotations

from typing import Any

import pytest

from tests.estimation.requests import question, shape
from zerokit.estimation import Runs, advise, verdict
from zerokit.estimation.advice import EXPANDABLE_SEGMENTS, Advice, advice_lines
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.gpus import find_gpu
from zerokit.memory import Lora, estimate
from zerokit.reporting.verdicts import NEGATIVE
from zerokit.units import GIB


def advice_of(gpu: str, num_gpus: int, model: str, **options: Any) -> list[Advice]:
    host = options.pop("host_gib", 2000)
    cluster = Cluster(num_gpus, gpu=find_gpu(gpu), host_bytes=host * GIB)
    asked = question(model=shape(model), cluster=cluster, **options)
    runs = Runs()
    answer = estimate(runs.training_run(asked))
    assert cluster.gpu_memory_bytes is not None
    found = advise(asked, answer, verdict(answer, cluster.gpu_memory_bytes), runs)
    for one in found:  # nothing is claimed that is not estimated
        changed = asked
        for change in one.changes:
            changed = change.apply(changed)
        fit = verdict(estimate(Runs().training_run(changed)), cluster.gpu_memory_bytes)
        assert (fit, fit.verdict) == (one.fit, "fits")
    return found


def words(advice: list[Advice]) -> list[str]:
    return [" ".join(change.how for change in one.changes) for one in advice]


LLAMAFACTORY = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
"""hiyouga/LLaMA-Factory#8642, which ran out of memory in the optimizer's step."""


def test_a_higher_stage_or_offload_is_found() -> None:
    sizes = {"seq_len": 2048, "gradient_checkpointing": True, "ds_config": LLAMAFACTORY}
    found = words(advice_of("H200", 8, "qwen3-32b", **sizes))
    assert '"zero_optimization": {"stage": 3}' in found
    assert '"zero_optimization": {"offload_optimizer": {"device": "cpu"}}' in found


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"seq_len": 16384, "gradient_checkpointing": True}, "--chunked-loss"),
        (
            {"seq_len": 2048, "micro_batch_size": 32, "chunked_loss": "zerokit"},
            "--micro-batch-size 4 --gradient-accumulation-steps 8",
        ),
        ({"seq_len": 16384, "chunked_loss": "zerokit"}, "--gradient-checkpointing"),
    ],
)
def test_the_cheapest_single_change_comes_first(options: dict[str, Any], change: str) -> None:
    assert words(advice_of("4090", 1, "qwen2.5-0.5b", **options))[0] == change


def test_changes_are_combined_where_one_is_not_enough() -> None:
    found = advice_of("H100", 8, "llama-3.1-8b", zero_stage=1, seq_len=32768, micro_batch_size=4)
    first = " ".join(change.how for change in found[0].changes)
    assert {"--chunked-loss", "--gradient-checkpointing"} <= set(first.split())
    for change in found[0].changes:  # each is needed
        others = [one for one in found[0].changes if one is not change]
        changed = question(
            model=shape("llama-3.1-8b"), cluster=Cluster(8), zero_stage=1, seq_len=32768, micro_batch_size=4
        )
        for one in others:
            changed = one.apply(changed)
        assert verdict(estimate(Runs().training_run(changed)), found[0].fit.gpu_memory_bytes).verdict != "fits"


def test_adapters_get_weights_in_4_bits() -> None:
    sizes = {"lora": Lora(16), "zero_stage": 0, "gradient_checkpointing": True, "chunked_loss": "zerokit"}
    assert "--load-in-4bit" in words(advice_of("3090", 1, "qwen2.5-14b", **sizes))


def test_pinned_memory_is_given_up_where_the_host_is_short() -> None:
    offload = {"device": "cpu", "pin_memory": True}
    config = {**LLAMAFACTORY, "zero_optimization": {"stage": 3, "offload_optimizer": offload}}
    sizes = {"seq_len": 2048, "gradient_checkpointing": True, "ds_config": config}
    found = words(advice_of("H100", 8, "qwen2.5-72b", **sizes, host_gib=1304))
    assert found[0] == '"zero_optimization": {"offload_optimizer": {"pin_memory": false}}'


def test_what_fits_gets_no_advice() -> None:
    assert advice_of("H100", 8, "qwen2.5-0.5b") == []


def test_expandable_segments_are_named_only_where_fragmentation_decides() -> None:
    answer = estimate(Runs().training_run(question()))
    fragmentation = next(term for term in answer.overheads if term.name == "fragmentation")

    def lines(memory: int) -> str:
        return " ".join(advice_lines([], answer, verdict(answer, memory)))

    without = answer.device_high_bytes - fragmentation.high
    assert EXPANDABLE_SEGMENTS in lines(round(1.03 * without))
    assert EXPANDABLE_SEGMENTS not in lines(round(1.01 * without))  # llama 70B of hiyouga/LLaMA-Factory#7282
    assert EXPANDABLE_SEGMENTS not in lines(answer.device_high_bytes)
    assert verdict(answer, answer.device_low_bytes - 1).verdict in NEGATIVE
    assert "take larger cards" in lines(answer.device_low_bytes - 1)


@pytest.mark.slow
def test_a_host_of_unknown_size_comes_last_and_more_gpus_need_none() -> None:
    asked = question(model=shape("qwen2.5-14b"), cluster=Cluster(1, gpu=find_gpu("4090")), seq_len=1024)
    answer = estimate(Runs().training_run(asked))
    found = advise(asked, answer, verdict(answer, find_gpu("4090").memory_bytes))
    assert [one.fit.host.is_condition for one in found] == sorted(one.fit.host.is_condition for one in found)
    assert ", if each host has " in found[-1].line
    on_gpus = words(advice_of("H100", 64, "llama-3.1-70b", zero_stage=1, seq_len=8192))
    assert any(line.startswith("--num-gpus") and "offload" not in line for line in on_gpus)


@pytest.mark.slow
def test_long_sequences_are_divided_before_the_optimizer_is_offloaded() -> None:
    """Ascend/pytorch#101: 256K tokens."""
    sizes = {"zero_stage": 3, "seq_len": 262144, "gradient_checkpointing": True}
    found = words(advice_of("A100-80GB", 8, "qwen3-4b", **sizes))
    assert found[0] == "--chunked-loss --sequence-parallel 2"
    in_4_bits = advice_of("A100-80GB", 8, "qwen3-4b", **sizes, lora=Lora(16), load_in_4bit=True)
    assert in_4_bits
    assert not any("--sequence-parallel" in line for line in words(in_4_bits))
    longer = words(advice_of("A100-80GB", 8, "qwen3-4b", **{**sizes, "seq_len": 3 * 2**20}))
    divided = "--chunked-loss --tiled-mlp --sequence-parallel 8 --activation-offloading"
    assert longer[0] == divided, longer


def test_few_gpus_share_a_sequence_where_changes_without_gpus_help() -> None:
    """Eight GPUs for each sequence would do, too."""
    found = words(advice_of("H100", 8, "llama-3.1-8b", zero_stage=3, seq_len=131072, gradient_checkpointing=True))
    assert found[0] == "--sequence-parallel 2 --chunked-loss"


def test_sequences_are_divided_in_place_of_layers_where_that_does_not_fit() -> None:
    sizes = {"zero_stage": 3, "seq_len": 2**20, "gradient_checkpointing": True, "chunked_loss": "zerokit"}
    parallelism = Parallelism(tensor=2)
    found = advice_of("H100", 8, "llama-3.1-8b", parallelism=parallelism, tiled_mlp=True, **sizes)
    (line,) = [one.line for one in found if "--sequence-parallel" in one.line and "--num-gpus" not in one.line][:1]
    assert "--sequence-parallel 8 without --tensor-parallel" in line
    assert "a step reads fewer sequences" in line


@pytest.mark.slow
def test_sequences_that_no_change_makes_fit_are_shortened() -> None:
    sizes = {"zero_stage": 3, "seq_len": 2**24, "gradient_checkpointing": True}
    found = advice_of("4090", 8, "qwen3-4b", **sizes)
    assert any(one.seq_len for one in found)
    assert all("--sequence-parallel 8" in line for line in words(found) if "--seq-len" in line)


def test_room_is_left_for_activations_that_are_not_counted() -> None:
    """ZHZisZZ/dllm#9: 8 billion parameters on 2 cards of 40 GB."""
    cluster = Cluster(2, gpu=find_gpu("A100-40GB"), host_bytes=2000 * GIB)
    asked = question(model=8_020_000_000, cluster=cluster, micro_batch_size=2, seq_len=None)
    found = words(advise(asked, answer := estimate(Runs().training_run(asked)), verdict(answer, 37 * GIB)))
    assert "--zero-stage 3 --offload-optimizer cpu" in found
    assert "--offload-optimizer cpu" not in found


def test_states_go_back_to_gpus_where_the_host_is_too_small() -> None:
    sizes = {"zero_stage": 3, "seq_len": 2048, "offload_optimizer": "cpu"}
    found = advice_of("H100", 8, "llama-3-8b", host_gib=100, **sizes)
    assert found[0].line.startswith("without --offload-optimizer: needs ")
    offload = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    config = {"zero_optimization": {"stage": 3, **offload}, "bf16": {"enabled": True}}
    both = '"zero_optimization": {"offload_param": {"device": "none"}}'
    both += ', "zero_optimization": {"offload_optimizer": {"device": "none"}}'
    assert both in words(advice_of("H100", 8, "llama-3-8b", host_gib=100, ds_config=config, seq_len=2048))


def test_fragmentation_is_nothing_to_a_host_that_is_too_small() -> None:
    cluster = Cluster(8, gpu=find_gpu("H100"), host_bytes=100 * GIB)
    asked = question(model=shape("llama-3-8b"), cluster=cluster, zero_stage=3, seq_len=2048, offload_optimizer="cpu")
    answer = estimate(Runs().training_run(asked))
    assert cluster.gpu_memory_bytes is not None
    fit = verdict(answer, cluster.gpu_memory_bytes)
    assert fit.verdict in NEGATIVE
    assert not any(EXPANDABLE_SEGMENTS in line for line in advice_lines([], answer, fit))

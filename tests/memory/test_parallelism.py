"""Sequence and tensor parallelism, tiled MLPs and offloaded activations in an estimate."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.runs import ds_config, run, shape
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Parallelism
from zerokit.memory import Estimate, Lora, estimate
from zerokit.memory.layout import layout_of
from zerokit.memory.tensor_parallel import divided as parts_of
from zerokit.models import load_model_shape

LONG: dict[str, Any] = {"seq_len": 2**17, "gradient_checkpointing": True, "chunked_loss": "zerokit"}


def estimated(stage: int = 3, *, sequence: int = 1, tensor: int = 1, **more: Any) -> Estimate:
    return estimate(
        run(stage, parallelism=Parallelism(sequence, tensor), world_size=more.pop("world_size", 8), **more)
    )


def held(answer: Estimate, name: str, device: str = "gpu") -> int:
    """The most bytes of a kind of memory."""
    return max((term.bytes for term in answer.terms if term.name == name and term.device == device), default=0)


@given(sequence=st.sampled_from([1, 2, 4, 8]), batch=st.integers(1, 3), checkpointing=st.booleans())
def test_zero_divides_states_among_all_ranks_and_each_rank_has_its_tokens(
    sequence: int, batch: int, checkpointing: bool
) -> None:
    options = {"micro_batch_size": batch, "gradient_checkpointing": checkpointing}
    alone, shared = estimated(**options), estimated(sequence=sequence, **options)
    assert shared.model_states == alone.model_states
    assert held(shared, "logits") * sequence == held(alone, "logits")
    assert held(shared, "inputs of checkpointed layers") * sequence == held(alone, "inputs of checkpointed layers")
    # Gradients are reduced in fp32 among ranks that share sequences.
    assert held(shared, "reduce bucket") == held(alone, "reduce bucket") * (2 if sequence > 1 else 1)


@given(tensor=st.sampled_from([2, 4]), tied=st.booleans(), zero_init=st.booleans())
def test_tensor_parallelism_divides_linear_layers(tensor: int, tied: bool, zero_init: bool) -> None:
    layout = layout_of(run(model=shape(tie_word_embeddings=tied)))
    parts = {one.module: one for one in parts_of(layout, tensor, tied=tied, zero_init=zero_init).parameters}
    for one in layout.parameters:
        whole = one.kind == "norm" or (one.module.endswith("embed_tokens") and not tied)
        assert parts[one.module].elements == (one.elements if whole else one.elements // tensor)
        assert parts[one.module].replicas == (tensor if whole and zero_init else 1)


def test_a_bias_that_is_added_after_the_sum_of_all_ranks_stays_whole() -> None:
    layout = layout_of(run(model=shape(attention_bias=True)))
    pairs = zip(layout.parameters, parts_of(layout, 4, tied=False, zero_init=False).parameters, strict=True)
    biases = {one.module.split(".")[-1]: one.elements // part.elements for one, part in pairs if one.kind == "bias"}
    assert biases == {"q_proj": 4, "k_proj": 4, "v_proj": 4, "o_proj": 1}


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_tensor_parallelism_leaves_fewer_ranks_to_zero(stage: int) -> None:
    answer = estimated(stage, tensor=4)
    ranks = {0: None, 1: 2, 3: 2}[stage]
    assert answer.model_states.optimizer_states.divided_by == ranks
    assert answer.num_parameters == estimated(stage).num_parameters
    assert answer.device.peak_bytes < estimated(stage, world_size=2).device.peak_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"stage": 2, "sequence": 2},
            "--sequence-parallel: .* needs ZeRO-3, and the run has stage 2: .* Set stage 3, in a ds_config by "
            "zero_optimization.stage$",
        ),
        ({"sequence": 3}, "--sequence-parallel: 8 GPUs do not divide into groups of 3 of sequence parallelism"),
        ({"sequence": 16, "world_size": 16}, "--sequence-parallel: .* 8 attention heads, 4 of keys and values"),
        ({"tensor": 8}, "--tensor-parallel: .* over 8 GPUs does not divide .* Choose a divisor of 4"),
        ({"sequence": 2, "attention": "eager"}, "--sequence-parallel: .* does not go with eager attention"),
        ({"tensor": 8, "sequence": 8, "stage": 2}, "--tensor-parallel: .* does not go with sequence parallelism"),
        ({"tensor": 2, "sequence": 2}, "--tensor-parallel: .* does not go with sequence parallelism"),
        ({"tensor": 2, "model": load_model_shape("phi-3-mini")}, "does not go with phi3: transformers has no plan"),
        ({"tensor": 2, "model": load_model_shape("gpt2")}, "does not go with gpt2: transformers has no plan"),
        ({"tensor": 2, "lora": Lora(8)}, "--tensor-parallel: .* does not go with peft"),
        ({"sequence": 2, "model": load_model_shape("EleutherAI/pythia-160m")}, "reads num_key_value_heads"),
        ({"tensor": 2, "model": 10**9}, "--tensor-parallel: needs a model"),
        ({"stage": 0, "tensor": 2, "without_deepspeed": True}, "--tensor-parallel: is DeepSpeed's"),
        ({"activation_offloading": True}, "--activation-offloading: .* Set --gradient-checkpointing"),
        ({"config": ds_config(3, sequence_parallel_size=4), "sequence": 2}, "is 2, and the ds_config has 4"),
    ],
)
def test_what_deepspeed_cannot_divide_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ZerokitError) as error:
        estimated(**options)
    assert re.search(words, str(error.value)), error.value


@pytest.mark.parametrize("stage", [1, 3])
def test_a_script_with_its_own_loss_divides_sequences_below_zero_3(stage: int) -> None:
    answer = estimated(stage, config=ds_config(stage, sequence_parallel_size=4), target="deepspeed")
    assert any("only a script's own loss" in line for line in answer.warnings) is (stage == 1)


def test_the_sizes_of_the_ds_config_count() -> None:
    written = estimate(run(config=ds_config(3, sequence_parallel_size=4), world_size=8))
    assert written.device == estimated(sequence=4).device
    sizes: dict[str, Any] = {"autotp_size": 2}
    written = estimate(run(config=ds_config(1, tensor_parallel=sizes), world_size=8))
    assert written.device == estimated(1, tensor=2).device
    # A tied output matrix is divided unless the ds_config says no.
    tied = shape(tie_word_embeddings=True)
    divided, whole = (
        estimate(run(model=tied, config=ds_config(1, tensor_parallel={**sizes, "vocab_parallel_lm_head": one})))
        for one in (None, False)
    )
    states = whole.model_states.parameters.elements - divided.model_states.parameters.elements
    assert states == 32000 * 512 // 2


def test_keys_and_values_are_repeated_where_a_rank_would_have_none() -> None:
    """16 heads of width 32, 2 key-value heads: 8 ranks repeat each of these 4 times."""
    model = shape(num_attention_heads=16, num_key_value_heads=2)
    few, many = (estimated(sequence=size, model=model, world_size=8) for size in (2, 8))
    gained = held(many, "activations") * 4 - held(few, "activations")
    assert gained == 4 * 1024 // 2 * 2 * 2 * (8 - 2) * 32  # layers, tokens, keys and values, bytes


@pytest.mark.parametrize("checkpointing", [False, True])
def test_blocks_of_a_window_share_a_mask_and_repeat_keys_and_values(checkpointing: bool) -> None:
    """4 layers of 8 heads, half of them with keys and values; a rank has 1024 of 2048 tokens."""
    model = {"model_type": "mistral"}
    options = {"sequence": 2, "seq_len": 2048, "gradient_checkpointing": checkpointing}
    whole, blocks, one_block = (
        held(estimated(model=shape(**model, sliding_window=window), **options), "activations")
        for window in (None, 512, 2048)
    )
    mask, repeated = 2 * 512 * 2 * 512, 4 * 1024 * 2 * 512 * 3 // 4
    # At the peak of recomputed layers there is the loss.
    assert blocks - whole == mask + (0 if checkpointing else 4) * repeated
    assert one_block == whole


def test_a_tiled_mlp_keeps_its_input_only() -> None:
    whole, tiled = (estimated(tiled_mlp=one, **LONG) for one in (False, True))
    assert tiled.device.peak_bytes < 0.8 * whole.device.peak_bytes
    # A tile of 512 tokens is small: what is left of a layer is its attention and norms.
    assert 0.9 < held(tiled, "activations") / (2**17 * 512 * 2 * 10) < 1.1
    # Shorter sequences are not divided.
    assert estimated(tiled_mlp=True, seq_len=512).device == estimated(seq_len=512).device


def test_offloaded_activations_wait_on_the_host() -> None:
    sizes = {**LONG, "sequence": 2}
    kept, offloaded = (estimated(activation_offloading=one, **sizes) for one in (False, True))
    size = 2 * 512 * LONG["seq_len"] // 2
    name = "inputs of checkpointed layers"
    assert (held(kept, name), held(offloaded, name)) == (4 * size, size)
    assert held(offloaded, name, "pinned") == 4 * size
    assert offloaded.host.per_node_bytes - kept.host.per_node_bytes >= 8 * 3 * size

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.memory.live_storage import LiveStorage
from zerokit.errors import ZerokitError
from zerokit.memory.decoder import (
    DecoderShape,
    activation_bytes,
    activation_gradient_bytes,
    layer_activation_bytes,
    loss_bytes,
)

SHAPES = {
    "multi-head": DecoderShape(64, 192, 3, 4, 4, 50),
    "grouped-query": DecoderShape(128, 320, 2, 8, 2, 96),
    "multi-query": DecoderShape(64, 128, 1, 4, 1, 30),
    "wide": DecoderShape(64, 512, 2, 4, 2, 16),
}
LLAMA_8B = DecoderShape(4096, 14336, 32, 32, 8, 128256)


def llama(shape: DecoderShape, **changes: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(**(vars(shape) | changes), attn_implementation="sdpa", use_cache=False)
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES.values(), LLAMA_8B], ids=[*SHAPES, "llama-8b"])
def test_parameters_are_those_of_transformers_in_order(shape: DecoderShape, tied: bool) -> None:
    with torch.device("meta"):
        model = llama(shape, tie_word_embeddings=tied)
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert list(shape.parameter_sizes(tied)) == sizes
    assert shape.num_parameters(tied) == sum(sizes)


def test_num_parameters_of_llama_3_8b() -> None:
    assert LLAMA_8B.num_parameters(tie_word_embeddings=False) == 8_030_261_248


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ZerokitError, match="intermediate_size is 0"):
        DecoderShape(64, 0, 1, 4, 4, 10)
    with pytest.raises(ZerokitError, match="not a multiple of num_attention_heads 3"):
        DecoderShape(64, 128, 1, 3, 3, 10)
    with pytest.raises(ZerokitError, match="not a multiple of num_key_value_heads 3"):
        DecoderShape(64, 128, 1, 4, 3, 10)


def saved_bytes(model: LlamaForCausalLM, ids: torch.Tensor) -> int:
    """Bytes that autograd keeps of a forward pass to the logits, each storage once, without parameters."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids)
    return sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in parameters)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("batch", "seq_len"), [(1, 64), (3, 16)])
def test_activations_are_what_autograd_saves(
    shape: DecoderShape, dtype: torch.dtype, batch: int, seq_len: int
) -> None:
    ids = torch.randint(0, shape.vocab_size, (batch, seq_len))
    saved = saved_bytes(llama(shape).to(dtype), ids)
    expected = activation_bytes(
        shape, micro_batch_size=batch, seq_len=seq_len, bytes_per_element=dtype.itemsize
    )
    assert expected == saved


def test_a_layer_in_bf16_agrees_with_the_usual_form() -> None:
    h, f, a, kv, tokens = 4096, 14336, 32, 8, 4 * 2048
    per_layer = layer_activation_bytes(LLAMA_8B, micro_batch_size=4, seq_len=2048, bytes_per_element=2)
    assert per_layer == tokens * h * (20 + 4 * kv / a + 8 * f / h) + 4 * tokens * a + 8 * tokens


def backward_peak(shape: DecoderShape, dtype: torch.dtype, batch: int, seq_len: int) -> int:
    """Most bytes live in the backward pass while the caller holds the output; gradients go at once."""
    model = llama(shape).to(dtype)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    ids = torch.randint(0, shape.vocab_size, (batch, seq_len))
    with LiveStorage(known=[*model.parameters(), *model.buffers(), ids]) as live:
        output = model(input_ids=ids, labels=ids)
        live.peak = live.now
        output.loss.backward()
        return live.peak


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_loss_dominates_where_the_vocabulary_is_large(dtype: torch.dtype) -> None:
    shape, sizes = DecoderShape(32, 64, 1, 2, 2, 4096), {"micro_batch_size": 2, "seq_len": 64}
    expected = activation_bytes(shape, **sizes, bytes_per_element=dtype.itemsize) + loss_bytes(
        shape, **sizes, bytes_per_element=dtype.itemsize
    )
    assert backward_peak(shape, dtype, 2, 64) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("intermediate_size", [64, 192, 512])
def test_gradients_of_activations_where_the_vocabulary_is_small(
    dtype: torch.dtype, intermediate_size: int
) -> None:
    shape = DecoderShape(64, intermediate_size, 2, 4, 2, 2)
    sizes = {"micro_batch_size": 2, "seq_len": 64, "bytes_per_element": dtype.itemsize}
    expected = activation_bytes(shape, **sizes) + activation_gradient_bytes(shape, **sizes)
    assert backward_peak(shape, dtype, 2, 64) == pytest.approx(expected, rel=0.01)

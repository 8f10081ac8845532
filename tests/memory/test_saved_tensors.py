"""What the formulas say autograd saves of a layer, against transformers' own models on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.memory.runs import ds_config
from zerokit.hardware.cluster import Cluster
from zerokit.memory import TrainingRun
from zerokit.memory.gpu import replay_gpu
from zerokit.memory.layout import layout_of
from zerokit.memory.settings import settings_of
from zerokit.models import load_model_shape

pytestmark = pytest.mark.torch

SIZES = {
    "vocab_size": 500,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
GPT2 = {
    "vocab_size": 500,
    "n_embd": 96,
    "n_head": 6,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("llama", SIZES, "num_hidden_layers", "sdpa"),
    ("llama", SIZES, "num_hidden_layers", "eager"),
    ("mistral", SIZES, "num_hidden_layers", "sdpa"),
    ("qwen2", SIZES, "num_hidden_layers", "sdpa"),
    ("qwen3", {**SIZES, "head_dim": 16}, "num_hidden_layers", "sdpa"),
    ("phi3", {**SIZES, "pad_token_id": 0}, "num_hidden_layers", "sdpa"),
    ("gemma", {**SIZES, "head_dim": 16}, "num_hidden_layers", "sdpa"),
    ("gpt_neox", {**SIZES, "num_key_value_heads": 6}, "num_hidden_layers", "sdpa"),
    ("gpt2", GPT2, "n_layer", "sdpa"),
]
BATCH, SEQ = 2, 64


def saved_bytes(config: Any, attention: str, dtype: torch.dtype) -> int:
    """Bytes of the storages that autograd keeps of one forward pass, those of parameters not counted."""
    torch.manual_seed(0)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).train()
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(storage)  # so that no address is used twice
        return tensor

    ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids)
    return sum(sizes.values())


# In fp32 the CPU takes another kernel for sdpa than a GPU does, so only plain operations are compared.
IN_FP32 = [(*case, "fp32") for case in CASES if case[3] == "eager"]


@pytest.mark.parametrize(
    ("model_type", "sizes", "layers_key", "attention", "precision"),
    [*((*case, "bf16") for case in CASES), *IN_FP32],
)
def test_a_layer_saves_what_the_formula_says(
    model_type: str, sizes: dict[str, Any], layers_key: str, attention: str, precision: str
) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    two, one = (
        saved_bytes(AutoConfig.for_model(model_type, **sizes, **{layers_key: count}), attention, dtype)
        for count in (2, 1)
    )
    shape = load_model_shape({"model_type": model_type, **sizes, layers_key: 2})
    run = TrainingRun(
        model=shape,
        ds_config=ds_config(0, precision),
        cluster=Cluster(1),
        micro_batch_size=BATCH,
        seq_len=SEQ,
        attention=attention,  # type: ignore[arg-type]
    )
    model_calls = replay_gpu(run, layout_of(run), settings_of(run), 0).model_calls
    assert model_calls is not None
    layer = next(block for block in model_calls.blocks if block.is_layer)
    assert layer.saved_bytes * BATCH * SEQ == pytest.approx(two - one, rel=0.01)

"""Model types that zerokit has no code for."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.integrations import HfDeepSpeedConfig

from tests.models.transformers_models import build
from zerokit.errors import ModelError
from zerokit.models import Experts, architectures, load_model_shape, on_meta

pytestmark = pytest.mark.torch

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "pad_token_id": 0,
}
UNKNOWN: dict[str, dict[str, Any]] = {
    "glm4": {"model_type": "glm4", **_SMALL, "head_dim": 16, "torch_dtype": "bfloat16"},
    "mamba2": {
        "model_type": "mamba2",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "vocab_size": 300,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
        "pad_token_id": 0,
    },
    "convnext": {"model_type": "convnext", "hidden_sizes": [8, 16, 32, 24], "depths": [1, 1, 1, 1]},
    "llava": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", **_SMALL},
        "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 1},
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        **_SMALL,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "quantization_config": {"quant_method": "fp8"},
    },
    "emu3": {  # its images go through an encoder and a decoder
        "model_type": "emu3",
        "architectures": ["Emu3ForConditionalGeneration"],
        "vocabulary_map": {"<image>": 1},
        "text_config": _SMALL,
        "vq_config": {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1},
    },
    "pegasus": {
        "model_type": "pegasus",
        "vocab_size": 300,
        "d_model": 32,
        **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")},
        "pad_token_id": 0,
    },
    "falcon": {
        "model_type": "falcon",
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "vocab_size": 307,
        "new_decoder_architecture": True,
        "num_kv_heads": 3,
    },
    "gpt2 with cross attention": {"model_type": "gpt2", "add_cross_attention": True, "n_layer": 1},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_they_are_built_by_transformers(name: str) -> None:
    config = UNKNOWN[name]
    shape = load_model_shape(config)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    model = build(plain, shape.architecture)
    assert shape.counted_by == "transformers"
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.num_parameters == sum(shape.parameters_by_kind.values())
    assert shape.has_sdpa == model._supports_sdpa
    assert shape.is_encoder_decoder == (name == "pegasus")
    read = getattr(model.config, "hidden_size", None)
    assert shape.hidden_size_for_accelerate == (read or max(getattr(model.config, "hidden_sizes", [0])) or None)


def test_what_is_read_off_their_configs() -> None:
    glm4, llava = load_model_shape(UNKNOWN["glm4"]), load_model_shape(UNKNOWN["llava"])
    assert (glm4.hidden_size, glm4.head_dim, glm4.num_key_value_heads) == (64, 16, 2)
    assert glm4.dtype == "bfloat16"
    assert (llava.hidden_size_for_trainer, llava.hidden_size_for_accelerate) == (64, None)
    assert load_model_shape(UNKNOWN["convnext"]).hidden_size_for_trainer == 32
    assert load_model_shape(UNKNOWN["gpt2 with cross attention"]).tie_word_embeddings


@pytest.mark.parametrize(
    ("config", "intermediate_size", "key_value_heads", "longest"),
    [
        (UNKNOWN["falcon"], 192, 3, 2048),
        ({**UNKNOWN["falcon"], "new_decoder_architecture": False, "ffn_hidden_size": 90}, 90, 1, 2048),
        ({"model_type": "gpt_bigcode", "n_embd": 48, "n_head": 6, "n_layer": 1}, 192, 1, 1024),
        ({"model_type": "gpt_bigcode", "n_embd": 48, "n_head": 6, "multi_query": False}, 192, 6, 1024),
        ({"model_type": "bloom", "hidden_size": 48, "n_head": 6, "n_layer": 1}, 192, 6, None),
        ({"model_type": "mpt", "d_model": 48, "n_heads": 6, "n_layers": 1, "max_seq_len": 40}, 192, 6, 40),
        ({"model_type": "opt", "ffn_dim": 60, "hidden_size": 48, "num_attention_heads": 6}, 60, 6, 2048),
        ({"model_type": "bart", "encoder_ffn_dim": 60, "d_model": 48, "encoder_attention_heads": 6}, 60, 6, 1024),
    ],
)
def test_sizes_under_other_names(
    config: dict[str, Any], intermediate_size: int, key_value_heads: int, longest: int | None
) -> None:
    shape = load_model_shape(config)
    assert shape.intermediate_size == intermediate_size
    assert shape.num_key_value_heads == key_value_heads
    assert shape.max_position_embeddings == longest


def test_a_catalogue_model_is_built_only_for_another_class() -> None:
    usual, other = (load_model_shape("opt-125m", architecture=name) for name in (None, "OPTForSequenceClassification"))
    assert (usual.counted_by, other.counted_by) == ("zerokit", "transformers")
    assert other.num_parameters == usual.num_parameters + 2 * 768
    assert "no model OPTForNothing" in refusal("opt-125m", architecture="OPTForNothing")


def test_their_experts() -> None:
    shape = load_model_shape(UNKNOWN["glm4_moe"])
    assert shape.experts is not None
    assert shape.experts == Experts(num_experts=4, num_experts_per_tok=2, num_layers=1)
    assert shape.parameters_by_kind["expert"] == 4 * 3 * 64 * 16
    assert shape.num_parameters - shape.num_active_parameters == 2 * 3 * 64 * 16
    assert shape.quantization == "fp8"


@pytest.mark.parametrize("model_type", architectures.model_types())
def test_kinds_guessed_from_names_are_those_of_the_code(model_type: str) -> None:
    """Not for every tensor, but for nine tenths of the parameters of every model type that zerokit knows."""
    shape = load_model_shape({"model_type": model_type})
    right = sum(tensor.total_elements for tensor in shape.tensors if on_meta.kind_by_name(tensor.name) == tensor.kind)
    assert right > 0.9 * shape.num_parameters


def refusal(config: dict[str, Any] | str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_model_shape(config, **options)
    assert caught.value.where
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nobody_knows_it() -> None:
    assert "knows model type 'nonesuch'" in refusal({"model_type": "nonesuch"})


def test_without_torch_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("glm4", "falcon"):
        assert f"model type {name!r}" in refusal(UNKNOWN[name], allow_torch=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = refusal(UNKNOWN["glm4"])
    assert "Install torch and transformers" in words
    assert "'add_cross_attention'" in refusal(UNKNOWN["gpt2 with cross attention"])


@pytest.mark.parametrize("architectures", [["BloomForCausalLM"], []])
def test_an_active_zero_3_partitions_nothing(architectures: list[str]) -> None:
    config = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    config = {**config, "architectures": architectures}
    plain = load_model_shape(config)
    active = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
    assert active.is_zero3()
    assert load_model_shape(config).tensors == plain.tensors


def test_transformers_cannot_build_it() -> None:
    assert "cannot build" in refusal({**UNKNOWN["glm4"], "num_attention_heads": "four"})
    assert "cannot build" in refusal({**UNKNOWN["glm4"], "hidden_size": -4})
    assert "cannot build" in refusal(
        {"model_type": "llama", **_SMALL, "per_layer_config": {"1": {"intermediate_size": 30}}}
    )

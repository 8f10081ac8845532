"""Properties of a shape."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zerokit.models import KINDS, Tensor, architectures, load_model_shape

pytestmark = pytest.mark.torch

MODEL_TYPES = list(architectures.model_types())


class Model:
    """All that transformers and accelerate ask of a model here."""

    def __init__(self, model_type: str) -> None:
        self.config = CONFIG_MAPPING[model_type]()


def bucket_under_trainer(model_type: str) -> int:
    config = HfTrainerDeepSpeedConfig({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})
    config.trainer_config_finalize(SimpleNamespace(get_warmup_steps=lambda steps: 0), Model(model_type), 10)
    bucket = config.config["zero_optimization"]["reduce_bucket_size"]
    assert isinstance(bucket, int)
    return bucket


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_auto_buckets_are_made_from_the_same_hidden_size(model_type: str) -> None:
    shape = load_model_shape({"model_type": model_type})
    assert shape.hidden_size_for_trainer is not None
    assert shape.hidden_size_for_trainer**2 == bucket_under_trainer(model_type)
    config = Model(model_type).config
    assert shape.hidden_size_for_accelerate == getattr(config, "hidden_size", None)


def test_accelerate_does_not_look_into_the_text_section() -> None:
    shape = load_model_shape("gemma-3-4b")
    assert (shape.hidden_size_for_trainer, shape.hidden_size_for_accelerate) == (2560, None)
    odd = load_model_shape({"model_type": "gemma3", "hidden_size": 99})
    assert (odd.hidden_size_for_trainer, odd.hidden_size_for_accelerate) == (99, 99)


def test_kinds_of_a_dense_decoder() -> None:
    shape = load_model_shape(
        {
            "model_type": "qwen2",
            "hidden_size": 8,
            "intermediate_size": 20,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 50,
        }
    )
    assert shape.parameters_by_kind == {
        "embedding": 2 * 50 * 8,
        "attention": 3 * (8 * 8 + 2 * 8 * 4 + 8 * 8),
        "mlp": 3 * 3 * 8 * 20,
        "norm": 3 * 2 * 8 + 8,
        "router": 0,
        "expert": 0,
        "bias": 3 * (8 + 4 + 4),
        "other": 0,
    }
    assert tuple(shape.parameters_by_kind) == KINDS
    assert shape.num_active_parameters == shape.num_parameters == shape.num_trainable_parameters
    assert not shape.is_moe
    assert shape.largest_tensor == Tensor("model.embed_tokens.weight", (50, 8), "embedding")


def test_a_mixture_of_experts() -> None:
    shape = load_model_shape("qwen3-235b-a22b")
    assert shape.experts is not None
    assert (shape.experts.num_experts, shape.experts.num_experts_per_tok) == (128, 8)
    assert shape.experts.num_layers == 94
    routed = shape.parameters_by_kind["expert"]
    assert routed == 94 * 128 * 3 * 4096 * 1536
    assert shape.num_active_parameters == shape.num_parameters - routed * 120 // 128
    assert shape.largest_tensor.name == "model.layers.*.mlp.experts.gate_up_proj"
    assert shape.largest_tensor.elements == 128 * 2 * 1536 * 4096


def test_experts_of_every_token_are_always_active() -> None:
    shape = load_model_shape("deepseek-v3")
    assert shape.experts is not None
    assert shape.experts.num_layers == 58
    assert shape.parameters_by_kind["mlp"] == 3 * 3 * 7168 * 18432 + 58 * 3 * 7168 * 2048
    assert 37.0e9 < shape.num_active_parameters < 38.0e9


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_tensor_is_named_once_and_has_a_sensible_kind(model_type: str) -> None:
    shape = load_model_shape({"model_type": model_type})
    names = [tensor.name for tensor in shape.tensors]
    assert len(set(names)) == len(names)
    for tensor in shape.tensors:
        assert tensor.kind in KINDS
        assert tensor.count >= 1
        if "norm" in tensor.name.lower() or ".ln_" in tensor.name:
            assert tensor.kind == "norm"
        if ".experts." in tensor.name:
            assert tensor.kind == "expert"
        if len(tensor.shape) == 1:
            assert tensor.kind in ("bias", "norm", "router", "attention")


@pytest.mark.parametrize(
    ("model_type", "config", "has_both"),
    [
        ("t5", {}, True),
        ("t5", {"architectures": ["T5EncoderModel"]}, False),
        ("bert", {}, False),
        # Its output matrix is lm_head.decoder, one of its own.
        ("roberta", {"tie_word_embeddings": False}, False),
        ("xlm-roberta", {"tie_word_embeddings": False}, False),
        ("llama", {}, False),
    ],
)
def test_what_is_an_encoder_and_a_decoder(model_type: str, config: dict[str, object], has_both: bool) -> None:
    shape = load_model_shape({"model_type": model_type, **config})
    if "tie_word_embeddings" in config:
        assert any(tensor.name == "lm_head.decoder.weight" for tensor in shape.tensors)
    assert shape.is_encoder_decoder is has_both

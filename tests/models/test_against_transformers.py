"""Parameters, one by one, against transformers' own models on torch's meta device."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.models.configurations import odd_configurations
from tests.models.transformers_models import build, parameters_of_model, parameters_of_shape
from zerokit.errors import ModelError
from zerokit.models import architectures, load_model_shape

pytestmark = pytest.mark.torch

MODEL_TYPES = {name: found for name in architectures.model_types() if (found := architectures.model_type(name))}
ODD = odd_configurations()
_ONE_LAYER = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def one_layer(model_type: str) -> dict[str, Any]:
    """A config that leaves everything to the defaults but the number of layers."""
    layers = {key: 1 for key in _ONE_LAYER if key in MODEL_TYPES[model_type].defaults}
    return {"model_type": model_type, **layers}


def assert_same_parameters(config: dict[str, Any], architecture: str) -> None:
    shape = load_model_shape(config, architecture=architecture, allow_torch=False)
    model = build(config, architecture)
    assert parameters_of_shape(shape, model) == parameters_of_model(model)
    assert shape.architecture == architecture
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.num_parameters == sum(shape.parameters_by_kind.values())
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert shape.num_trainable_parameters == trainable
    if architecture == next(iter(MODEL_TYPES[config["model_type"]].classes)):
        read, written = model.get_input_embeddings(), model.get_output_embeddings()
        tied = written is not None and read.weight is written.weight
        assert load_model_shape(config).tie_word_embeddings == tied


def test_there_are_enough_of_them() -> None:
    assert len(ODD) >= 60
    assert {config["model_type"] for config in ODD.values()} == set(MODEL_TYPES)


@pytest.mark.parametrize("name", ODD)
def test_odd_configurations(name: str) -> None:
    config = ODD[name]
    for architecture in MODEL_TYPES[config["model_type"]].classes:
        assert_same_parameters(config, architecture)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_defaults(model_type: str) -> None:
    config = one_layer(model_type)
    for architecture in MODEL_TYPES[model_type].classes:
        assert_same_parameters(config, architecture)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_empty_config_has_the_sizes_of_transformers(model_type: str) -> None:
    shape = load_model_shape({"model_type": model_type}, allow_torch=False)
    settings = CONFIG_MAPPING[model_type]()
    text = settings.get_text_config()
    assert shape.hidden_size == text.hidden_size
    assert shape.num_hidden_layers == text.num_hidden_layers
    assert shape.num_attention_heads == text.num_attention_heads
    if shape.vocab_size is not None:
        assert shape.vocab_size == text.vocab_size
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if hasattr(text, key):
            assert shape.max_position_embeddings == getattr(text, key)
    for key in ("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "ffn_hidden_size"):
        if getattr(text, key, None) is not None:
            assert shape.intermediate_size == getattr(text, key)
    if isinstance(getattr(text, "num_key_value_heads", None), int):
        assert shape.num_key_value_heads == text.num_key_value_heads
    if isinstance(getattr(text, "head_dim", None), int) and not model_type.startswith("deepseek"):
        assert shape.head_dim == text.head_dim
    if getattr(text, "num_experts_per_tok", None) is not None:
        assert shape.experts is not None
        assert shape.experts.num_experts_per_tok == text.num_experts_per_tok


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_class_counted_by_default_is_the_one_transformers_trains(model_type: str) -> None:
    """The auto class of the task that such models are trained for."""
    settings = type(CONFIG_MAPPING[model_type]())
    usual = next(iter(MODEL_TYPES[model_type].classes))
    autos = (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM)
    assert usual in {auto._model_mapping[settings].__name__ for auto in autos if settings in auto._model_mapping}
    assert load_model_shape({"model_type": model_type}, allow_torch=False).architecture == usual


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sdpa_is_what_transformers_has_for_each_class(model_type: str) -> None:
    known = MODEL_TYPES[model_type]
    there = {name: getattr(transformers, name)._supports_sdpa for name in known.classes}
    assert there == dict.fromkeys(known.classes, known.has_sdpa)
    assert load_model_shape({"model_type": model_type}, allow_torch=False).has_sdpa == known.has_sdpa


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_aliases_are_those_of_transformers(model_type: str) -> None:
    """Every spelling that reaches a size, in the same direction."""
    known = MODEL_TYPES[model_type]
    settings = CONFIG_MAPPING[model_type]()
    for alias, name in known.aliases.items():
        there = settings.attribute_map
        assert there.get(alias) == name or there.get(name) == alias


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_null_is_refused_where_transformers_refuses_it(model_type: str) -> None:
    known = MODEL_TYPES[model_type]
    for key in known.defaults:
        config = {"model_type": model_type, key: None}
        try:
            CONFIG_MAPPING[model_type].from_dict({key: None})
        except Exception:  # of huggingface_hub's strict dataclasses, whatever it is called
            assert key not in known.nullable
            for architecture in known.classes:
                with pytest.raises(ModelError, match=rf"^config\.json \({key}\): '{key}' is null\. Give "):
                    load_model_shape(config, architecture=architecture, allow_torch=False)
        else:
            assert key in known.nullable

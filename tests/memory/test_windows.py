from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from tests.each import each
from tests.validation.memory.families import BY_TYPE
from zerokit.memory.traits import has_window
from zerokit.models import catalogue, load_model_shape

pytestmark = pytest.mark.torch


def _theirs(config: dict[str, Any]) -> tuple[int | None, list[bool]]:
    """transformers' window, and which layers have it: all, where no types of layers are named."""
    keys = dict(config)
    text = AutoConfig.for_model(keys.pop("model_type"), **keys).get_text_config()
    window = getattr(text, "sliding_window", None) or None
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return window, [window is not None and kind == "sliding_attention" for kind in kinds]


@each(catalogue.entries(), by=lambda entry: entry.config["model_type"], named=lambda entry: entry.id)
def test_windows_are_transformers(entry: catalogue.Entry) -> None:
    model = load_model_shape(entry.config)
    window, layers = _theirs(dict(entry.config))
    assert [has_window(model, layer, window or 10**9) for layer in range(len(layers))] == layers
    assert not any(has_window(model, layer, (window or 10**9) - 1) for layer in range(len(layers)))


@pytest.mark.parametrize("model_type", [*BY_TYPE, "olmo3"])
def test_defaults_are_those_of_transformers_classes(model_type: str) -> None:
    """What holds where a config names neither a window nor which layers have it."""
    config = dict(BY_TYPE[model_type if model_type in BY_TYPE else "olmo2"][0].config, model_type=model_type)
    named = ("sliding_window", "layer_types", "sliding_window_pattern", "use_sliding_window")
    config = {key: value for key, value in config.items() if key not in named}
    if "text_config" in config:
        config["text_config"] = {k: v for k, v in config["text_config"].items() if k not in named}
    window, layers = _theirs(config)
    model = load_model_shape(config)
    assert [has_window(model, layer, window or 10**9) for layer in range(len(layers))] == layers
    assert not any(has_window(model, layer, (window or 10**9) - 1) for layer in range(len(layers)))


def test_a_switch_and_types_of_layers_are_read() -> None:
    qwen = {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}
    gemma = {"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 2}
    named = {**gemma, "num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}
    for config in (qwen, gemma, named):
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
        known = {"hidden_size": 64, "num_hidden_layers": 4, **heads, **config}
        model, (_, layers) = load_model_shape(known), _theirs(known)
        assert True in layers
        assert [has_window(model, layer, 64) for layer in range(len(layers))] == layers

"""The catalogue, family by family, and its models with fewer layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.models import catalogue

BY_TYPE: dict[str, list[catalogue.Entry]] = {}
"""The catalogue's models of each model type."""
for _entry in catalogue.entries():
    BY_TYPE.setdefault(_entry.config["model_type"], []).append(_entry)

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")


def with_layers(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The same model with `count` layers; where the first layers are dense, one is."""
    changed = dict(config)
    if "text_config" in changed:
        changed["text_config"] = with_layers(changed["text_config"], count)
        changed["vision_config"] = {**changed["vision_config"], "num_hidden_layers": 1}
        return changed
    changed[next(key for key in _LAYERS if key in changed)] = count
    for key in ("decoder_layers", "num_decoder_layers", "max_window_layers"):
        if changed.get(key) is not None:
            changed[key] = count
    if "layer_types" in changed:
        changed["layer_types"] = changed["layer_types"][:count]
    if changed["model_type"] == "gpt_neo":
        changed["attention_types"] = [[["global"], count]]
    if changed.get("first_k_dense_replace"):
        changed["first_k_dense_replace"] = 1
    return changed


def with_vocabulary(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The same model with a vocabulary of `count`, whose special tokens are the first."""
    changed = dict(config)
    if "text_config" in changed:
        return {**changed, "text_config": with_vocabulary(changed["text_config"], count)}
    tokens = {key: 1 for key in changed if key.endswith("_token_id")}
    return {**changed, **tokens, "vocab_size": count, "pad_token_id": 0, "decoder_start_token_id": 0}

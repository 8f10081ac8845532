"""The Llama that several of these scripts train: 111 million parameters."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

SHAPE = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}


def small_llama(**changes: Any) -> LlamaConfig:
    """Its config, with `changes`."""
    return LlamaConfig(**{**SHAPE, **changes})

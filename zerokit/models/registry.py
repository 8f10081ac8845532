"""The model types with code, and their families."""

from __future__ import annotations

from importlib import import_module

from zerokit.models.parts import ModelType

FAMILY_OF = {
    "bert": "bert",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "distilbert": "bert",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gemma3_text": "gemma",
    "gpt2": "gpt2",
    "gpt_oss": "mixture",
    "granite": "llama",
    "granitemoe": "mixture",
    "granitemoeshared": "mixture",
    "llama": "llama",
    "ministral3": "llama",
    "mistral": "llama",
    "mixtral": "mixture",
    "mt5": "t5",
    "olmo": "llama",
    "olmo2": "llama",
    "olmo3": "llama",
    "olmoe": "mixture",
    "phi": "phi",
    "phi3": "phi",
    "phimoe": "phi",
    "qwen2": "qwen",
    "qwen2_moe": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
    "roberta": "bert",
    "smollm3": "llama",
    "t5": "t5",
    "umt5": "t5",
    "xlm-roberta": "bert",
}
"""The module of `zerokit.models.families` for each `model_type` of config.json."""


def model_type(name: str) -> ModelType | None:
    """The model type of that name, or None without code; imports only its family."""
    family = FAMILY_OF.get(name)
    if family is None:
        return None
    known: tuple[ModelType, ...] = import_module(f"zerokit.models.families.{family}").MODEL_TYPES
    return next(one for one in known if one.name == name)

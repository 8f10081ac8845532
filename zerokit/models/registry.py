"""All model types that zerokit counts by itself, and the family that each belongs to."""

from __future__ import annotations

from importlib import import_module

from zerokit.models.parts import ModelType

FAMILY_OF = {
    "bart": "bart",
    "bert": "bert",
    "bloom": "fused_attention",
    "cohere": "cohere",
    "cohere2": "cohere",
    "deberta-v2": "deberta",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "distilbert": "bert",
    "falcon": "fused_attention",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gemma3_text": "gemma",
    "gpt2": "gpt",
    "gpt_bigcode": "gpt",
    "gpt_neo": "gpt",
    "gpt_neox": "fused_attention",
    "gpt_oss": "mixture",
    "gptj": "gpt",
    "granite": "llama",
    "granitemoe": "mixture",
    "granitemoeshared": "mixture",
    "llama": "llama",
    "ministral3": "llama",
    "mistral": "llama",
    "mixtral": "mixture",
    "mpt": "fused_attention",
    "mt5": "t5",
    "olmo": "llama",
    "olmo2": "olmo",
    "olmo3": "olmo",
    "olmoe": "mixture",
    "opt": "opt",
    "phi": "phi",
    "phi3": "phi",
    "phimoe": "phi",
    "qwen2": "qwen",
    "qwen2_moe": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
    "roberta": "bert",
    "smollm3": "llama",
    "stablelm": "stablelm",
    "starcoder2": "stablelm",
    "t5": "t5",
    "umt5": "t5",
    "vit": "vision",
    "xlm-roberta": "bert",
}
"""The module of `zerokit.models.families` that counts a `model_type` of config.json."""


def model_type(name: str) -> ModelType | None:
    """The model type of that name, or None if zerokit does not count it; imports its family alone."""
    family = FAMILY_OF.get(name)
    if family is None:
        return None
    known: tuple[ModelType, ...] = import_module(f"zerokit.models.families.{family}").MODEL_TYPES
    return next(one for one in known if one.name == name)

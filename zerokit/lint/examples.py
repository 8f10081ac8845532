"""The runs of the rules' examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.models import ModelShape
from zerokit.releases.versions import parse_version

if TYPE_CHECKING:
    from zerokit.recipe import Recipe


def run_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that a row of JSON names, for `Run.of`: a model by its function here, a recipe by its
    sections."""
    return {name: _fact(name, value) for name, value in row.items()}


def _fact(name: str, value: Any) -> Any:
    match name:
        case "deepspeed_version":
            return parse_version(value)
        case "model":
            return globals()[value]()
        case "recipe":
            return recipe(**value)
    return value


def llama_8b(**keys: Any) -> ModelShape:
    """A dense decoder with a large embedding: the shape of Llama 3.1 8B, with more keys of a config.json."""
    return _decoder("llama", (128_256, 4096, 14_336, 32, 32), num_key_value_heads=8, **keys)


def model_with_text_config() -> ModelShape:
    """A model whose config.json has its dimensions in `text_config`, as models for text and images do."""
    return replace(llama_8b(), hidden_size_for_accelerate=None)


def small_decoder() -> ModelShape:
    """A decoder of 0.1 billion parameters."""
    return _decoder("llama", (32_000, 768, 2048, 12, 12))


def mixture_of_experts() -> ModelShape:
    """A decoder with experts, of a kind that DeepSpeed does not recognize."""
    from zerokit.models import load_model_shape

    return replace(load_model_shape("allenai/OLMoE-1B-7B-0924"), name="an example of olmoe")


def quantised() -> ModelShape:
    """A checkpoint whose config.json has a `quantization_config`."""
    return llama_8b(quantization_config={"quant_method": "bitsandbytes"})


def recipe(**sections: Any) -> Recipe:
    """A recipe with the sections that matter, and the least of the others."""
    from zerokit.recipe import Recipe

    return Recipe.model_validate({"model": "some/model", "data": {"train": "train.jsonl"}, **sections})


def _decoder(model_type: str, sizes: tuple[int, int, int, int, int], **keys: Any) -> ModelShape:
    from zerokit.models import load_model_shape

    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = {"model_type": model_type, "dtype": "bfloat16", **dict(zip(names, sizes, strict=True)), **keys}
    return replace(load_model_shape(config, allow_torch=False), name=f"an example of {model_type}")

"""Counts a model from its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerokit.errors import ModelError, did_you_mean
from zerokit.models.architectures import ModelType
from zerokit.models.architectures import model_type as known_type
from zerokit.models.keys import Keys, NotCountedError
from zerokit.models.shape import ModelShape

Where = Callable[[tuple[str, ...]], str]
"""Returns the place of a config key, for errors."""


def count(config: Mapping[str, Any], where: Where, *, name: str, architecture: str | None = None) -> ModelShape:
    """Count the parameters of a model whose family has code.

    Args:
        architecture: transformers' class; None: the class in the config, else the class that is usually
            trained.

    Raises:
        NotCountedError: the model type or a setting has no code.
        ModelError: the config is invalid.
    """
    keys = Keys(config, where)
    model_type = model_type_of(keys)
    known = known_type(model_type)
    if known is None:
        raise NotCountedError(f"model type '{model_type}'")
    keys.not_counted("per_layer_config")
    chosen = _architecture(known, keys, architecture)
    given = Keys(config, where, defaults=known.defaults, aliases=known.aliases)
    given.refuse_nulls(known.nullable)
    parts = known.parts(chosen, given)
    sizes = parts.sizes
    return ModelShape(
        name=name,
        model_type=model_type,
        architecture=chosen,
        tensors=tuple(parts.tensors),
        **vars(sizes),
        tie_word_embeddings=parts.tied,
        experts=parts.experts,
        dtype=birth_dtype(keys),
        quantization=quantization_method(keys),
        hidden_size_for_trainer=sizes.hidden_size,
        hidden_size_for_accelerate=sizes.hidden_size,
        has_sdpa=known.has_sdpa,
        is_encoder_decoder=parts.is_encoder_decoder,
        notes=parts.notes,
        config=config,
    )


def model_type_of(keys: Keys) -> str:
    """The `model_type` of a config.json. ModelError if it is missing, or the file is of another kind."""
    model_type = keys.text("model_type")
    if model_type:
        return model_type
    if any(key in keys.data for key in ("zero_optimization", "train_micro_batch_size_per_gpu")):
        keys.fail("model_type", "is missing: this looks like a ds_config", "Name the model's config.json")
    if "peft_type" in keys.data:
        keys.fail("model_type", "is missing: this is a peft adapter", "Name the model that it adapts")
    keys.fail("model_type", "is missing", "Add it, such as 'llama', or name a model's config.json")


def birth_dtype(keys: Keys) -> str | None:
    """The type of the saved weights: `dtype`, or `torch_dtype` in older files, also in `text_config`.

    Raises:
        ModelError: it is not a string.
    """
    for name in ("dtype", "torch_dtype"):
        if keys.data.get(name) is not None:
            return keys.text(name).removeprefix("torch.")
    if isinstance(keys.data.get("text_config"), Mapping):
        return birth_dtype(keys.section("text_config"))
    return None


def quantization_method(keys: Keys) -> str | None:
    """The method of `quantization_config`; "unknown" if it has none, None without such a section.

    Raises:
        ModelError: it is not a section.
    """
    if not keys.data.get("quantization_config"):
        return None
    return keys.section("quantization_config").text("quant_method") or "unknown"


def _architecture(known: ModelType, keys: Keys, requested: str | None) -> str:
    """The requested class, else the first class of the config that has code, else the usual one."""
    if requested is not None:
        if requested not in known.classes:
            raise ModelError(
                f"zerokit has no code to count '{requested}' of model type '{known.name}'",
                where="architecture",
                hint=did_you_mean(requested, known.classes),
            )
        return requested
    named = keys.data.get("architectures")
    if named is not None and not isinstance(named, list):
        keys.fail("architectures", "is not a list", "Write it like ['LlamaForCausalLM']")
    usual = next(iter(known.classes))
    return next((name for name in named or () if isinstance(name, str) and name in known.classes), usual)

"""Models whose family has no code: transformers builds them on torch's meta device, without data."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zerokit.errors import ModelError
from zerokit.models.count import Where, birth_dtype, model_type_of, quantization_method
from zerokit.models.keys import Keys
from zerokit.models.shape import Experts, ModelShape
from zerokit.models.tensors import Kind, Tensor
from zerokit.tables import table_of

_TABLE = table_of(__file__)
_AUTO_CLASSES: Sequence[str] = _TABLE["auto_classes"]
"""Tried in order if the config names no class of transformers."""
_KINDS: Sequence[tuple[Kind, str]] = _TABLE["kinds"]
"""The kind of a parameter by its name: the first pattern that matches."""
_INTERMEDIATE_SIZES: Sequence[str] = _TABLE["intermediate_sizes"]
"""Spellings of the feed-forward width."""
_MODEL_TYPES = ("auto_mappings.py", "configuration_auto.py")
"""Files with transformers' model types in `models/auto`: from 5.0 on, and before."""


def meta_is_possible() -> bool:
    """Whether torch and transformers are installed; neither is imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def count_on_meta(
    config: Mapping[str, Any], where: Where, *, name: str, architecture: str | None = None
) -> ModelShape:
    """Build the model on the meta device and read its parameters; imports torch and transformers.

    Counts are exact; kinds of tensors are guessed from their names.

    Raises:
        ModelError: transformers does not know the model type, or cannot build it.
    """
    keys = Keys(config, where)
    model_type = model_type_of(keys)
    if not _is_listed(model_type):
        raise ModelError(
            f"neither zerokit nor transformers {version('transformers')} knows model type '{model_type}'",
            where=where(("model_type",)),
            hint="Check its spelling, or install a transformers that has it",
        )
    settings, model = _build(config, where, model_type, architecture)
    tensors = _tensors(model)
    text = _text_config(settings)
    hidden = _hidden_size(settings)
    text_hidden = _hidden_size(getattr(settings, "text_config", None))
    return ModelShape(
        name=name,
        model_type=model_type,
        architecture=type(model).__name__,
        tensors=tensors,
        hidden_size=_whole(text, "hidden_size") or hidden or text_hidden,
        intermediate_size=_intermediate_size(text),
        num_hidden_layers=_whole(text, "num_hidden_layers"),
        num_attention_heads=_whole(text, "num_attention_heads"),
        num_key_value_heads=_key_value_heads(text),
        head_dim=_head_dim(text),
        vocab_size=_whole(text, "vocab_size"),
        max_position_embeddings=_whole(text, "max_position_embeddings") or _whole(text, "max_seq_len"),
        tie_word_embeddings=_is_tied(model),
        experts=_experts(text, tensors),
        dtype=birth_dtype(keys),
        quantization=quantization_method(keys),
        hidden_size_for_trainer=hidden if _names_hidden_size(settings) else text_hidden,
        hidden_size_for_accelerate=hidden,
        has_sdpa=bool(getattr(model, "_supports_sdpa", False)),
        is_encoder_decoder=bool(settings.is_encoder_decoder),
        counted_by="transformers",
        config=config,
    )


def _is_listed(model_type: str) -> bool:
    """Whether transformers has the model type; read from its sources, because an import takes seconds."""
    package = importlib.util.find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "models" / "auto"
    files = [folder / name for name in _MODEL_TYPES]
    return any(f'"{model_type}"' in file.read_text(encoding="utf-8") for file in files if file.is_file())


def _build(config: Mapping[str, Any], where: Where, model_type: str, architecture: str | None) -> tuple[Any, Any]:
    """transformers' config and model."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        # Quantized layers need kernels to be built; unquantized parameters are counted.
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        settings = CONFIG_MAPPING[model_type].from_dict(plain)
        named = [architecture] if architecture else list(config.get("architectures") or ())
        with torch.device("meta"):
            for name in named:
                found = getattr(transformers, str(name), None)
                if found is not None:
                    return settings, found(settings)
            for name in _AUTO_CLASSES:
                auto = getattr(transformers, name, None)
                if auto is not None and type(settings) in auto._model_mapping and architecture is None:
                    # `from_config` would partition the model if ZeRO-3 is active in this process.
                    found = auto._model_mapping[type(settings)]
                    return settings, (found[0] if isinstance(found, tuple | list) else found)(settings)
    except Exception as error:
        # Constructors raise various errors for invalid sizes.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(
            f"transformers cannot build this model: {reason}", where=where(()), hint="Check the config.json"
        ) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    raise ModelError(
        f"transformers has no model {architecture or f'of type {model_type!r}'}",
        where=where(()) if architecture is None else "architecture",
        hint="Name another",
    )


def _tensors(model: Any) -> tuple[Tensor, ...]:
    """The parameters, with ``*`` for layer numbers."""
    found: Counter[tuple[str, tuple[int, ...], bool]] = Counter()
    for name, parameter in model.named_parameters():
        found[re.sub(r"\.\d+(?=\.|$)", ".*", name), tuple(parameter.shape), parameter.requires_grad] += 1
    return tuple(
        Tensor(name, shape, kind_by_name(name), times, trainable) for (name, shape, trainable), times in found.items()
    )


def kind_by_name(name: str) -> Kind:
    """The probable kind of a parameter, by its name."""
    return next((kind for kind, pattern in _KINDS if re.search(pattern, name, re.IGNORECASE)), "other")


def _experts(config: Any, tensors: tuple[Tensor, ...]) -> Experts | None:
    number = next(
        (
            value
            for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
            if (value := _whole(config, key)) is not None
        ),
        None,
    )
    chosen = _whole(config, "num_experts_per_tok") or _whole(config, "moe_k") or _whole(config, "moe_topk")
    routed = [tensor for tensor in tensors if tensor.kind == "expert"]
    if number is None or chosen is None or chosen > number or not routed:
        return None
    layers = max(tensor.count for tensor in routed)
    stacked = any(tensor.shape[0] == number for tensor in routed)
    return Experts(number, chosen, num_layers=layers if stacked else layers // number)


def _text_config(config: Any) -> Any:
    """The text part of a config; the whole config if there are several text parts."""
    try:
        return config.get_text_config()
    except ValueError:
        return config


def _hidden_size(config: Any) -> int | None:
    """The `hidden_size` that accelerate finds for "auto", and transformers first."""
    if hasattr(config, "hidden_size"):
        return _whole(config, "hidden_size")
    sizes = getattr(config, "hidden_sizes", None)
    return max(sizes) if sizes else None


def _names_hidden_size(config: Any) -> bool:
    """Whether transformers does not look into `text_config`."""
    return hasattr(config, "hidden_size") or hasattr(config, "hidden_sizes")


def _head_dim(config: Any) -> int | None:
    given, hidden, heads = (_whole(config, key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    return given if given is not None else hidden // heads if hidden and heads else None


def _intermediate_size(config: Any) -> int | None:
    """Width of the feed-forward layers: 4 x hidden for BLOOM, MPT, and GPTs whose key is null."""
    sizes = (_whole(config, key) for key in _INTERMEDIATE_SIZES)
    found = next((size for size in sizes if size), None)
    hidden = _whole(config, "hidden_size")
    has_default = config.model_type in ("bloom", "gpt_neo", "mpt") or hasattr(config, "n_inner")
    return 4 * hidden if found is None and hidden and has_default else found


def _key_value_heads(config: Any) -> int | None:
    """Falcon's old decoder and GPT-BigCode have only the flag `multi_query`."""
    heads = _whole(config, "num_attention_heads")
    if hasattr(config, "multi_query") and not getattr(config, "new_decoder_architecture", False):
        return 1 if config.multi_query else heads
    return _whole(config, "num_key_value_heads") or _whole(config, "num_kv_heads") or heads


def _is_tied(model: Any) -> bool:
    try:
        read, written = model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:  # a model without embeddings
        return False
    matrix = getattr(written, "weight", None)
    return matrix is not None and getattr(read, "weight", None) is matrix


def _whole(config: Any, key: str) -> int | None:
    try:
        value = getattr(config, key, None)
    except Exception:
        # Some configs raise if a size differs between layers, with various errors.
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None

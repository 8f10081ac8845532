"""The model of a run: its config checked on the host, its weights made or loaded on all ranks.

Under ZeRO-3 the parameters are partitioned while the model is built, which every rank does together;
:func:`prepare_model` therefore finds whatever is wrong beforehand, and :func:`build_model` is left with
nothing that bad input could break.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.source import check_checkpoint, read_model_config, resolve_checkpoint
from zerokit.errors import ModelError, RecipeError, did_you_mean

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from zerokit.recipe import LoadedRecipe
    from zerokit.recipe.model import ModelSection


@dataclass(frozen=True)
class PreparedModel:
    """What is needed to build the model, checked."""

    config: PretrainedConfig
    folder: Path | None
    """The checkpoint to load; None to start from scratch."""


def find_checkpoint(section: ModelSection, where: str) -> Path | None:
    """The local folder of the checkpoint to start from (downloaded if it is on the Hub), checked.

    Raises:
        ModelError: it is not there, or not complete.
    """
    if section.path is None:
        return None
    folder = resolve_checkpoint(
        section.path, where=where, revision=section.revision, remote_code=section.trust_remote_code
    )
    check_checkpoint(folder, where=where)
    return folder


def prepare_model(
    loaded: LoadedRecipe, folder: Path | None, tokenizer: PreTrainedTokenizerBase
) -> PreparedModel:
    """Make the model's config and check that model, tokenizer and sequence length fit together.

    Raises:
        ModelError: an unknown architecture or key, or a vocabulary smaller than the tokenizer's.
        RecipeError: ``task.seq_len`` exceeds the model's positions.
    """
    section = loaded.recipe.model
    if folder is not None:
        config = _load_config(folder, section, where=loaded.where("model", "path"))
    else:
        config = _config_from_scratch(loaded, tokenizer)
    if config.get_text_config().vocab_size < len(tokenizer):
        raise ModelError(
            f"the model has {config.get_text_config().vocab_size} embeddings, the tokenizer "
            f"{len(tokenizer)} tokens",
            where=loaded.where("model", "tokenizer"),
            hint="Use the tokenizer that belongs to the model",
        )
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and loaded.recipe.task.seq_len > positions:
        raise RecipeError(
            f"sequences of {loaded.recipe.task.seq_len} tokens, but the model has {positions} positions",
            where=loaded.where("task", "seq_len"),
            hint=f"Set task.seq_len to at most {positions}",
        )
    return PreparedModel(config, folder)


def build_model(prepared: PreparedModel, section: ModelSection, dtype: torch.dtype) -> PreTrainedModel:
    """Build the model on every rank together; under ZeRO-3 each keeps its share of the parameters.

    TrainingArguments (or an HfDeepSpeedConfig) must exist already: they are what tells transformers
    that it runs under ZeRO-3.
    """
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": section.trust_remote_code}
    if section.attn_implementation is not None:
        options["attn_implementation"] = section.attn_implementation
    if prepared.folder is None:
        return AutoModelForCausalLM.from_config(prepared.config, **options)
    return AutoModelForCausalLM.from_pretrained(
        prepared.folder, config=prepared.config, use_safetensors=True, **options
    )


def count_parameters(config: PretrainedConfig, *, trust_remote_code: bool = False) -> int:
    """Parameters of the model that `config` describes, tied ones once, without making any weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return sum(parameter.numel() for parameter in model.parameters())


def _load_config(folder: Path, section: ModelSection, *, where: str) -> PretrainedConfig:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=section.trust_remote_code)
    except Exception as error:
        # Wrong types, unknown architectures and missing files each have an exception of their own.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{folder}/config.json: {reason}", where=where, hint="Check the model folder"
        ) from error
    remote = section.trust_remote_code and "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    if type(config) not in AutoModelForCausalLM._model_mapping and not remote:
        raise ModelError(
            f"'{config.model_type}' is not a causal language model",
            where=where,
            hint="Choose a model for text generation",
        )
    return config


def _config_from_scratch(loaded: LoadedRecipe, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    from transformers import AutoConfig

    where = loaded.where("model", "from_config")
    source = loaded.recipe.model.from_config
    if isinstance(source, str):
        keys = dict(read_model_config(Path(source).expanduser(), where=where).data)
    else:
        keys = dict(source or {})
    model_type = keys.pop("model_type", None)
    if model_type is None:
        raise ModelError("has no 'model_type'", where=where, hint="Add it, such as 'llama'")
    known = _known_keys(str(model_type), where)
    for key in keys:
        # A config.json may carry keys of other versions; what a person writes inline may not.
        if key not in known and not isinstance(source, str):
            raise ModelError(
                f"'{key}' is not a key of a {model_type} config",
                where=loaded.where("model", "from_config", key),
                hint=did_you_mean(key, known),
            )
    keys.setdefault("vocab_size", len(tokenizer))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        keys.setdefault(name, getattr(tokenizer, name))
    try:
        return AutoConfig.for_model(model_type, **keys)
    except Exception as error:
        # Each architecture checks its own sizes, with exceptions of its own.
        raise ModelError(str(error), where=where, hint="Correct the sizes") from error


def _known_keys(model_type: str, where: str) -> set[str]:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    causal = {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    if model_type not in causal:
        raise ModelError(
            f"'{model_type}' is not a causal language model of transformers",
            where=where,
            hint=did_you_mean(model_type, sorted(causal)),
        )
    return set(CONFIG_MAPPING[model_type]().to_dict())

"""Add the adapter that a recipe asks for to a model: its own parameters are then all that is trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zerokit.errors import RecipeError
from zerokit.training.peft.keys import VIRTUAL_TOKENS, Asked, check_peft_keys, config_class
from zerokit.training.peft.prompts import without_learned_tokens
from zerokit.training.peft.targets import check_targets, is_all_linear
from zerokit.training.peft.unfit import pattern_of, unfit_layers

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, TrainingArguments

    from zerokit.recipe import LoadedRecipe

_NO_MODULE = "NoMatchingPeftModuleError"
"""peft's error where all modules that are named are left out; older releases have none of that name."""
_SAVED_ANYWAY = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score")}
"""Modules that peft adds to `modules_to_save` by itself, by the type of the task (peft_model.py)."""


def add_adapter(
    model: PreTrainedModel, loaded: LoadedRecipe, args: TrainingArguments, task_type: str | None
) -> PreTrainedModel:
    """Freeze the model and add the adapter that the recipe asks for, if it asks for one.

    Raises:
        RecipeError: peft refuses the values, or no module of the model is a target.
    """
    asked = check_peft_keys(loaded)
    if asked is None:
        return model
    adapted = adapted_model(model, asked, loaded, task_type)
    if args.gradient_checkpointing:
        # The input of the first checkpointed block would need no gradient, and neither would its output.
        adapted.enable_input_require_grads()
    if asked.method.tokens == "embedded" and task_type in ("CAUSAL_LM", "TOKEN_CLS"):
        adapted.register_forward_hook(without_learned_tokens, with_kwargs=True)
    return adapted


def adapted_model(
    model: PreTrainedModel, asked: Asked, loaded: LoadedRecipe, task_type: str | None
) -> PeftModel:
    """The model with an adapter.

    Raises:
        RecipeError: peft refuses the values, or no module of the model is a target.
    """
    from peft import get_peft_model

    check_targets(model, asked, loaded)
    keys = {"task_type": task_type, **_defaults(asked, loaded, model), **asked.keys}
    # What was made anew is trained whole and saved with the adapter: no checkpoint has it.
    whole = [*(keys.get("modules_to_save") or ()), *getattr(model, "new_modules", ())]
    anyway = _SAVED_ANYWAY.get(keys["task_type"] or "", ())
    if outermost := [name for name in whole if not _is_below(name, (*whole, *anyway))]:
        keys["modules_to_save"] = outermost
    if is_all_linear(keys.get("target_modules")) and (unfit := unfit_layers(model)):
        keys["exclude_modules"] = _and_those(keys.get("exclude_modules"), unfit)
    try:
        return get_peft_model(model, config_class(asked.type_)(**keys))
    except (ValueError, TypeError, NotImplementedError, RuntimeError, re.error) as error:
        if type(error).__name__ == _NO_MODULE:
            raise RecipeError(
                f"{asked.method.noun}: no module is left to adapt",
                where=loaded.where("peft", "target_modules"),
                hint="See which ones exclude_modules, modules_to_save or layers_to_transform leave out",
            ) from error
        reason = " ".join(str(error).split())
        raise RecipeError(
            f"{asked.method.noun}: {reason}", where=loaded.where("peft"), hint="Correct the keys"
        ) from error


def _is_below(name: str, others: Sequence[str]) -> bool:
    """Whether a module is part of one that is saved, with which it would be looked for twice."""
    parts = name.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return any(module.endswith(other) for module in outer for other in others)  # as peft finds them


def _defaults(asked: Asked, loaded: LoadedRecipe, model: PreTrainedModel) -> dict[str, Any]:
    """Keys that nobody has given, where peft knows none for the model, or ones that do not fit it."""
    if asked.method.tokens is None:
        return _default_targets(asked, model)
    text = model.config.get_text_config(decoder=True)
    sizes = {
        "num_layers": getattr(text, "num_hidden_layers", 1),
        "num_attention_heads": getattr(text, "num_attention_heads", 1),
    }
    found: dict[str, Any] = {"num_virtual_tokens": VIRTUAL_TOKENS}
    if asked.method.tokens == "cached":
        return found | sizes | _of_decoder(model.config)
    # Not always the hidden size: ALBERT and ELECTRA widen their embeddings afterwards.
    found |= sizes | {"token_dim": model.get_input_embeddings().embedding_dim}
    if asked.type_ == "prompt_tuning":
        section = loaded.recipe.model
        named = section.tokenizer if isinstance(section.tokenizer, str) else section.path
        # Words of the vocabulary: better than random numbers (Lester et al. 2021, section 3.2).
        found |= (
            {"prompt_tuning_init": "TEXT", "tokenizer_name_or_path": named}
            if "prompt_tuning_init_text" in asked.keys
            else {"prompt_tuning_init": "SAMPLE_VOCAB"}
        )
    return found


def _of_decoder(config: PretrainedConfig) -> dict[str, Any]:
    """Sizes of the keys and values that a decoder keeps; peft looks at those of the encoder."""
    heads = getattr(config, "decoder_attention_heads", None)
    layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    found = {"num_attention_heads": heads, "num_layers": layers}
    if getattr(config, "d_kv", None):  # T5's heads together are not always as wide as its hidden states
        found["token_dim"] = config.d_kv * config.num_attention_heads
    else:
        found["token_dim"] = config.get_text_config(decoder=True).hidden_size
    return {name: value for name, value in found.items() if value is not None}


def _and_those(excluded: str | Sequence[str] | None, unfit: list[str]) -> str | list[str]:
    """What is excluded, as peft takes it, a pattern or ends of names; and some more ends of names."""
    if not excluded or isinstance(excluded, str):
        return f"{excluded}|{pattern_of(unfit)}" if excluded else pattern_of(unfit)
    return [*excluded, *unfit]


_HEADS = r".*(classifier|score)(\..*)?"
"""Trained whole."""


def _default_targets(asked: Asked, model: PreTrainedModel) -> dict[str, Any]:
    """Peft's for the type of model, and all linear layers of one that it does not know."""
    from peft.utils import constants

    model_type, of_ia3 = model.config.model_type, asked.type_ == "ia3"
    known = (
        constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
        if of_ia3
        else constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    )
    found: dict[str, Any] = {}
    if not any(asked.keys.get(name) for name in ("target_modules", "target_parameters")):
        # An adapter on each: Dettmers et al. 2023, section 4.
        if asked.type_ == "qlora" or model_type not in known:
            found |= {"target_modules": "all-linear", "exclude_modules": _HEADS}
        else:
            # By name: peft 0.21 finds none for Mixtral where it is left to look them up.
            found["target_modules"] = known[model_type]
    if of_ia3 and model_type not in known:
        found["feedforward_modules"] = []
    return found

"""The recipe's ``peft`` section: low-rank adapters instead of all parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zerokit.errors import RecipeError, did_you_mean
from zerokit.extras import require

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainingArguments

    from zerokit.recipe import LoadedRecipe

_TYPES = ["lora"]

_SAVED_ANYWAY = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score")}
"""Modules that peft adds to `modules_to_save` by itself, by the type of the task (peft_model.py)."""


def check_peft_keys(loaded: LoadedRecipe) -> dict[str, Any] | None:
    """The keys for peft's LoraConfig; None when all parameters are trained.

    Raises:
        ZerokitError: peft is not installed, or an unknown type or key.
    """
    section = loaded.recipe.peft
    if section is None:
        return None
    require("peft", where=loaded.where("peft"))
    from peft import LoraConfig

    keys = dict(section)
    type_ = keys.pop("type", "lora")
    if type_ not in _TYPES:
        raise RecipeError(
            f"unknown type '{type_}'",
            where=loaded.where("peft", "type"),
            hint=did_you_mean(str(type_), _TYPES),
        )
    names = [field.name for field in dataclasses.fields(LoraConfig) if field.init]
    for key in keys:
        if key not in names:
            raise RecipeError(
                f"'{key}' is not a LoraConfig key",
                where=loaded.where("peft", key),
                hint=did_you_mean(key, names),
            )
    return keys


def defaults_of_lora() -> dict[str, Any]:
    """The values of LoraConfig's keys that are not given; peft is installed."""
    from peft import LoraConfig

    return dict(vars(LoraConfig()))


def add_adapter(
    model: PreTrainedModel, loaded: LoadedRecipe, args: TrainingArguments, task_type: str | None
) -> PreTrainedModel:
    """Freeze the model and add the adapter that the recipe asks for, if it asks for one.

    Raises:
        RecipeError: peft refuses the values, or no module of the model is a target.
    """
    keys = check_peft_keys(loaded)
    if keys is None:
        return model
    from peft import LoraConfig, get_peft_model

    # What was made anew is trained whole and saved with the adapter: no checkpoint has it.
    whole = [*(keys.get("modules_to_save") or ()), *getattr(model, "new_modules", ())]
    anyway = _SAVED_ANYWAY.get(keys.get("task_type", task_type) or "", ())
    if outermost := [name for name in whole if not _is_below(name, (*whole, *anyway))]:
        keys["modules_to_save"] = outermost
    try:
        adapted = get_peft_model(model, LoraConfig(**{"task_type": task_type, **keys}))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise RecipeError(f"LoRA: {error}", where=loaded.where("peft"), hint="Correct the keys") from error
    if args.gradient_checkpointing:
        # The input of the first checkpointed block would need no gradient, and neither would its output.
        adapted.enable_input_require_grads()
    return adapted


def _is_below(name: str, others: Sequence[str]) -> bool:
    """Whether a module is part of one that is saved, with which it would be looked for twice."""
    parts = name.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return any(module.endswith(other) for module in outer for other in others)  # as peft finds them

"""Names of modules in a recipe's section ``peft``, held against the model: peft passes over unknown ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zerokit.errors import RecipeError, nearest, raise_together

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zerokit.recipe import LoadedRecipe

_NAMES = ("target_modules", "exclude_modules", "modules_to_save", "feedforward_modules")
"""Keys that are a list of names, or ends of names; a text is a pattern of whole ones."""
_PATTERNS = ("rank_pattern", "alpha_pattern")
"""Keys that are a mapping, by patterns of the ends of names."""
_ALL = "all-linear"


def check_targets(model: PreTrainedModel, keys: Mapping[str, Any], loaded: LoadedRecipe) -> None:
    """Refuse names that no module of the model has.

    Args:
        model: without an adapter.
        keys: of peft's config, as the recipe has them.
        loaded: the recipe, for the places of errors.

    Raises:
        RecipeError: there are such names; all of them at once.
    """
    modules = dict(model.named_modules())
    raise_together(
        RecipeError(message, where=loaded.where("peft", key), hint=hint)
        for key in (*_NAMES, *_PATTERNS)
        if keys.get(key)
        for message, hint in _unknown(key, keys[key], modules)
    )


def _unknown(key: str, value: Any, modules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What names no module, and the hint."""
    if isinstance(value, str):
        if value == _ALL and key == "target_modules":
            return
        if not _matches(value, modules):
            ends = any(name.endswith(f".{value}") for name in modules)
            hint = f"Write [{value}], a list of ends of names" if ends else _instead(value, modules)
            yield f"no module's whole name is as the pattern '{value}' says", hint
        return
    for name in value:
        if key in _PATTERNS:
            known = _matches(rf"(.*\.)?({name})", modules)
        else:
            known = name in modules or any(module.endswith(f".{name}") for module in modules)
        if not known:
            yield f"the model has no module '{name}'", _instead(str(name), modules)


def _matches(pattern: str, modules: Mapping[str, Any]) -> bool:
    try:
        return any(re.fullmatch(pattern, module) for module in modules)
    except re.error:  # as peft would, of which it says more
        return True


def _instead(name: str, modules: Mapping[str, Any]) -> str:
    """A hint that names a layer of the model, or those that there are."""
    layers = {module.rpartition(".")[2] for module, layer in modules.items() if _has_matrix(layer)}
    close = nearest(name.rpartition(".")[2], sorted(layers))
    return f"Did you mean '{close}'?" if close else f"Its layers are {', '.join(sorted(layers)[:16])}"


def _has_matrix(layer: Any) -> bool:
    weight = getattr(layer, "weight", None)
    shape = getattr(weight, "ds_shape", getattr(weight, "shape", ()))  # under ZeRO-3 a rank has no matrix
    return len(shape) > 1

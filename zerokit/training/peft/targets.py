"""Names of modules in a recipe's section ``peft``, held against the model: peft passes over unknown ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerokit.errors import RecipeError, nearest, raise_together
from zerokit.spelling import mistyped
from zerokit.training.peft.keys import config_class

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zerokit.recipe import LoadedRecipe
    from zerokit.training.peft.keys import Asked

_ENDS = {"target_modules": r"(.*\.)?", "feedforward_modules": r"(.*\.)?", "modules_to_save": ".*"}
"""Keys that are a list of ends of names -> what may be before an end; a text is a pattern of whole names.

``exclude_modules`` is none of them: what it names may be there or not.
"""
_PATTERNS = ("rank_pattern", "alpha_pattern")
"""Keys that are a mapping, by patterns of the ends of names, of parameters, too."""


@dataclass(frozen=True)
class _Names:
    """Of a model."""

    modules: Collection[str]
    parameters: Collection[str]
    layers: list[str]
    """Last parts of the names of modules that have a matrix."""
    earlier: Collection[str]
    """Of `target_modules`, names that peft makes others of."""


def is_all_linear(targets: Any) -> bool:
    """Whether `target_modules` are all linear layers, as peft reads it."""
    return isinstance(targets, str) and targets.lower() == "all-linear"


def check_targets(model: PreTrainedModel, asked: Asked, loaded: LoadedRecipe) -> None:
    """Refuse names of which the model has none, or that are plainly mistyped.

    Lists are shared between models: a name of another model's layer, beside one that is there, is no mistake.

    Args:
        model: without an adapter.
        asked: the keys of peft's config, as the recipe has them.
        loaded: the recipe, for the places of errors.

    Raises:
        RecipeError: there are such names; all of them at once.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = sorted({name.rpartition(".")[2] for name, layer in modules.items() if _has_matrix(layer)})
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names = _Names(modules, parameters, layers, _earlier_names(model, asked))
    raise_together(
        RecipeError(message, where=loaded.where("peft", key), hint=hint)
        for key in (*_ENDS, *_PATTERNS)
        if asked.keys.get(key)
        for message, hint in _unknown(key, asked.keys[key], names)
    )


def _earlier_names(model: PreTrainedModel, asked: Asked) -> Collection[str]:
    """Those of `target_modules` that peft itself makes names of parameters.

    transformers 5 keeps the experts of a layer in one parameter; peft still takes what their layers were
    called before, for the types of models that it knows.
    """
    targets = asked.keys.get("target_modules")
    if not targets or asked.method.config != "LoraConfig":
        return ()
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a release that takes all names as they are
        return ()
    config = config_class(asked.type_)(target_modules=targets)
    try:
        convert_peft_config_for_transformers(config, model, None)
    except re.error:
        return ()
    except ValueError:  # some of the layers that are one parameter now: peft says which are missing
        return [targets] if isinstance(targets, str) else targets
    left: Any = config.target_modules
    if isinstance(targets, str):
        return () if left == targets else [targets]
    return [name for name in targets if name not in left]


def _unknown(key: str, value: Any, names: _Names) -> Iterator[tuple[str, str]]:
    """What names nothing, and the hint."""
    if isinstance(value, str):
        if (key == "target_modules" and is_all_linear(value)) or value in names.earlier:
            return
        if not _matches(value, names.modules):
            ends = any(name.endswith(f".{value}") for name in names.modules)
            hint = f"Write [{value}], a list of ends of names" if ends else _instead(value, names)
            yield f"no module's whole name is as the pattern '{value}' says", hint
        return
    unknown = [name for name in map(str, value) if not _is_known(key, name, names)]
    for name in unknown:
        meant = mistyped(name.rpartition(".")[2], names.layers)
        # Two names of one list are hardly the same one: o_proj, beside q_proj, is of other models.
        if len(unknown) == len(value) or (meant is not None and meant not in value):
            yield f"the model has no module '{name}'", _instead(name, names)


def _is_known(key: str, name: str, names: _Names) -> bool:
    if key in _PATTERNS:
        return _matches(rf"(.*\.)?({name})", (*names.modules, *names.parameters))
    return name in names.earlier or _matches(_ENDS[key] + re.escape(name), names.modules)


def _matches(pattern: str, known: Collection[str]) -> bool:
    try:
        return any(re.fullmatch(pattern, name) for name in known)
    except re.error:  # as peft would, of which it says more
        return True


def _instead(name: str, names: _Names) -> str:
    """A hint that names a layer of the model, or those that there are."""
    if any(f".{parameter}".endswith(f".{name}") for parameter in names.parameters):
        return "It is a parameter, which LoRA takes in target_parameters"
    close = nearest(name.rpartition(".")[2], names.layers)
    return f"Did you mean '{close}'?" if close else f"Its layers are {', '.join(names.layers[:16])}"


def _has_matrix(layer: Any) -> bool:
    weight = getattr(layer, "weight", None)
    shape = getattr(weight, "ds_shape", getattr(weight, "shape", ()))  # under ZeRO-3 a rank has no matrix
    return len(shape) > 1

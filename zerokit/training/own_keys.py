"""What a run takes of the keys of its section ``training`` that are zerokit's own."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from zerokit.config.base import ZERO
from zerokit.errors import RecipeError
from zerokit.recipe.training_keys import OwnKeys

if TYPE_CHECKING:
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved


def take_own(resolved: Resolved, loaded: LoadedRecipe) -> OwnKeys:
    """Take them out of the resolved arguments.

    Raises:
        RecipeError: steps are to be skipped by an optimizer that cannot.
    """
    given = {key.name: resolved.training.pop(key.name, None) for key in fields(OwnKeys)}
    own = OwnKeys(**{name: value for name, value in given.items() if value not in (None, "")})
    if own.on_spike == "skip":
        _check_skips(resolved, loaded)
    return own


def _check_skips(resolved: Resolved, loaded: LoadedRecipe) -> None:
    zero = resolved.ds_config.get(ZERO) or {}
    if zero.get("zenflow"):
        other, key = "ZenFlow, whose updates are a step behind their gradients", "zenflow"
    elif (zero.get("offload_optimizer") or {}).get("super_offload"):
        other = "SuperOffload, whose optimizer steps while gradients are still to come"
        key = "offload_optimizer.super_offload"
    else:
        return
    raise RecipeError(
        f"'skip' does not go with {other}",
        where=loaded.where("training", "on_spike"),
        hint=f"Set it to note or stop, or remove zero_optimization.{key}",
    )

"""The keys of a recipe's section ``training`` that are zerokit's own, not transformers'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.config.base import ZERO
from zerokit.errors import RecipeError

if TYPE_CHECKING:
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved


@dataclass(frozen=True)
class OwnKeys:
    """With what they are where the recipe is silent."""

    rescue_dir: Path | None = None
    """Where the model goes if it cannot be saved in the output folder."""
    on_spike: str = "note"
    """What to do where the loss leaps: ``note``, ``skip`` or ``stop``."""
    max_skipped_steps: int = 5
    """In a row, with ``skip``."""
    bind_cores: bool = True
    """Whether each rank whose optimizer steps on the host keeps to cores of its own."""


def take_own(resolved: Resolved, loaded: LoadedRecipe) -> OwnKeys:
    """Take them out of the resolved arguments.

    Raises:
        RecipeError: steps are to be skipped by an optimizer that cannot.
    """
    given = {name: resolved.training.pop(name, None) for name in OwnKeys.__dataclass_fields__}
    if given["rescue_dir"]:
        given["rescue_dir"] = Path(given["rescue_dir"])
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

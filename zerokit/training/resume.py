"""Where a resumed run continues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.errors import RecipeError

if TYPE_CHECKING:
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved


def find_resume(resolved: Resolved, loaded: LoadedRecipe) -> str | None:
    """The checkpoint-N folder that ``training.resume_from_checkpoint`` names: a path, or true for the last.

    Takes the argument out of the resolved ones.

    Raises:
        RecipeError: there is none, or it lacks the Trainer's state.
    """
    asked = resolved.training.pop("resume_from_checkpoint", None)
    where = loaded.where("training", "resume_from_checkpoint")
    if asked in (None, False):
        return None
    if asked is True:
        from transformers.trainer_utils import get_last_checkpoint

        output_dir = resolved.training["output_dir"]
        last = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
        if last is None:
            raise RecipeError(
                f"'{output_dir}' has no checkpoint-N to continue from",
                where=where,
                hint="Set save_strategy and save_steps in the run that is to be continued",
            )
        asked = last
    if not (Path(asked) / "trainer_state.json").is_file():
        raise RecipeError(
            f"'{asked}' is no checkpoint of a run: it has no trainer_state.json",
            where=where,
            hint="Name a checkpoint-N folder, or true for the last one",
        )
    return str(asked)

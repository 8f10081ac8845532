"""Where a resumed run continues, and whether it is the run that it was."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit import console
from zerokit.errors import CheckpointError, RecipeError
from zerokit.training.folder import checkpoints
from zerokit.training.identity import differences, in_words, read_identity
from zerokit.units import quantity

if TYPE_CHECKING:
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved
    from zerokit.training.identity import Identity

_STATE_FILE = "trainer_state.json"
"""The Trainer writes it last: a checkpoint without it was being written when its run ended."""

_ANOTHER = "Continue from an earlier checkpoint-N"

_PART = re.compile(r"zero_pp_rank_(\d+)_.*optim_states\.pt$")


def find_resume(resolved: Resolved, loaded: LoadedRecipe, *, world_size: int) -> Path | None:
    """The checkpoint-N folder that ``training.resume_from_checkpoint`` names: a path, or true for the last.

    Takes the argument out of the resolved ones.

    Raises:
        RecipeError: there is none, it lacks the Trainer's state, or another number of ranks saved it.
    """
    asked = resolved.training.pop("resume_from_checkpoint", None)
    where = loaded.where("training", "resume_from_checkpoint")
    if asked in (None, False):
        return None
    if asked is True:
        output_dir = Path(resolved.training["output_dir"])
        whole = [folder for folder in checkpoints(output_dir) if (folder / _STATE_FILE).is_file()]
        if not whole:
            raise RecipeError(
                f"'{output_dir}' has no checkpoint-N to continue from",
                where=where,
                hint="Set save_strategy and save_steps in the run that is to be continued",
            )
        folder = whole[-1]
    else:
        folder = Path(asked)
    if not (folder / _STATE_FILE).is_file():
        raise RecipeError(
            f"'{folder}' is no checkpoint of a run: it has no {_STATE_FILE}",
            where=where,
            hint="Name a checkpoint-N folder, or true for the last one",
        )
    try:
        json.loads((folder / _STATE_FILE).read_bytes())
    except ValueError as error:
        raise CheckpointError(
            f"{_STATE_FILE} is damaged: {error}", where=str(folder), hint=_ANOTHER
        ) from None
    parts = [int(found[1]) for file in folder.glob("global_step*/*") if (found := _PART.search(file.name))]
    if parts and max(parts) + 1 != world_size:
        saved = quantity(max(parts) + 1, "rank")
        raise RecipeError(
            f"'{folder}' was saved by {saved}, each of which kept its part, and this run has {world_size}",
            where=where,
            hint=f"Start {saved}: 'deepspeed --num_gpus {max(parts) + 1}'",
        )
    tag = folder / "latest"
    states = folder / tag.read_text(encoding="utf-8", errors="replace").strip() if tag.is_file() else tag
    lacks = [
        what
        for what, found in {
            "latest, which names DeepSpeed's part": tag.is_file(),
            "DeepSpeed's part, which latest names": states.is_dir()
            and states.resolve().parent == folder.resolve(),
            "the states of the model": any(states.glob("*model_states.pt")),
            "the states of the optimizer of each rank": len(set(parts)) == world_size,
        }.items()
        if not found
    ]
    if lacks:
        raise CheckpointError(f"lacks {lacks[0]}", where=str(folder), hint=_ANOTHER)
    return folder


def resumed(checkpoint: Path, now: Identity, *, where: str) -> Identity:
    """The identity under which the run of `checkpoint` goes on.

    Args:
        checkpoint: of :func:`find_resume`.
        now: of the run that is about to begin.
        where: the place of the checkpoint's name in the recipe.

    Raises:
        RecipeError: it is of a run with another recipe, other data or another model, most of which would be
            ignored: DeepSpeed takes the optimizer's settings from the checkpoint.
        CheckpointError: what it says of its run cannot be read.
    """
    was = read_identity(checkpoint)
    if was is None:
        console.note(f"{checkpoint} does not say which run it is of: recipe, data and model are not compared")
        return now
    different = differences(was, now)
    if different:
        raise RecipeError(
            f"'{checkpoint}' is of a run that differs: {in_words(different)}",
            where=where,
            hint=f"Set it back; or begin another run from its weights, with --model {checkpoint} and another "
            "output_dir",
        )
    return replace(now, run_id=was.run_id, started=was.started)

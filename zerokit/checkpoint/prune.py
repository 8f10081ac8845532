"""Removes older checkpoints of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.step_folder import TRAINER_STATE, has_step_folder, named_as_latest, number_of, numbered_folders
from zerokit.checkpoint.unfinished import UNFINISHED, move_to_unfinished, remove_unfinished
from zerokit.documents import is_folder, read_bytes
from zerokit.errors import CheckpointError
from zerokit.staging import is_staging

_MOST_OF_STATE = 64 << 20
"""Bytes; the file has a line per logged step."""


@dataclass(frozen=True)
class Pruning:
    """The checkpoints of a run to keep and to remove, oldest first."""

    kept: Sequence[Path]
    """The newest complete ones, the one that ``latest`` names, and the best one in the Trainer's state."""
    removed: Sequence[Path]
    """Includes leftovers of interrupted removals."""
    left: Sequence[Path]
    """Newer than a kept one but incomplete, or not DeepSpeed's."""


def plan_pruning(run: Path, keep: int) -> Pruning:
    """Choose the checkpoints to remove: those older than the newest `keep` complete ones.

    A checkpoint is complete if the headers of its files show that none is missing.

    Args:
        run: a folder with folders such as ``checkpoint-1200`` or ``global_step1200``.
        keep: at least 1.

    Raises:
        CheckpointError: there is no such folder or no complete checkpoint, or the best one or the order is
            unknown.
    """
    if not is_folder(run):
        raise CheckpointError("no such folder", where=run, hint="Name the folder of a run")
    folders = [folder for folder in numbered_folders(run) if not folder.is_symlink()]
    complete = [folder for folder in folders if _is_complete(folder)]
    if not complete:
        raise CheckpointError(
            "has no complete checkpoint, so none is removed",
            where=run,
            hint="Name the folder that contains checkpoint-1200 or global_step1200",
        )
    oldest = folders.index(complete[-keep:][0])
    named = {*named_as_latest(run).values(), *_best(run, folders)}
    old = folders[:oldest]
    interrupted = list(_interrupted(run / UNFINISHED, number_of(folders[-1].name) or 0))
    removed = [folder for folder in old if folder.name not in named and has_step_folder(folder)]
    kept = [*(folder for folder in old if folder.name in named), *complete[-keep:]]
    left = [folder for folder in folders if folder not in (*kept, *removed)]
    return Pruning(kept, [*interrupted, *removed], left)


def _best(run: Path, folders: Sequence[Path]) -> Iterator[str]:
    """Names of the best checkpoints, by the Trainer's state of the run and of its newest checkpoint.

    The Trainer's rotation keeps them too (`rotate_checkpoints` of transformers' trainer_utils.py).
    """
    newest = next((one for one in reversed(folders) if (one / TRAINER_STATE).is_file()), run)
    for file in {run / TRAINER_STATE, newest / TRAINER_STATE}:
        if file.is_file():
            best = _state(file).get("best_model_checkpoint")
            yield Path(best).name if isinstance(best, str) else ""


def _state(file: Path) -> dict[str, Any]:
    content = read_bytes(file, max_bytes=_MOST_OF_STATE, folder=file.parent)
    with suppress(ValueError, RecursionError):
        state = json.loads(content) if len(content) <= _MOST_OF_STATE else None
        if isinstance(state, dict):
            return state
    raise CheckpointError(
        "is damaged or far too large: the best checkpoint is unknown",
        where=file,
        hint="Remove it; then no checkpoint counts as the best",
    )


def _interrupted(folder: Path, newest: int) -> Iterator[Path]:
    """Leftovers of interrupted removals; the newest checkpoint may be one that a run is writing."""
    for path in sorted(folder.iterdir()) if is_staging(folder) else ():
        number = number_of(path.name)
        if number is not None and number < newest and path.is_dir() and not path.is_symlink():
            yield path


def remove(folder: Path) -> None:
    """Remove a checkpoint; a partly removed one is never used. CheckpointError if it cannot be removed."""
    try:
        remove_unfinished(folder if folder.parent.name == UNFINISHED else move_to_unfinished(folder))
    except OSError as error:
        raise CheckpointError(
            f"cannot be removed: {error.strerror or error}", where=folder, hint="Check its permissions"
        ) from None


def size_of(folder: Path) -> int:
    """Bytes of the files of a checkpoint, without files that links lead to."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _is_complete(folder: Path) -> bool:
    try:
        read_checkpoint(folder)
    except CheckpointError:
        return False
    return True

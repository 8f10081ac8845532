"""Removes the older checkpoints of a run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.step_folder import find_step_folder, numbered
from zerokit.documents import shown
from zerokit.errors import CheckpointError


@dataclass(frozen=True)
class Pruning:
    """What is to be done with the checkpoints of a run, oldest first."""

    kept: Sequence[Path]
    """The newest complete ones, and the one that ``latest`` names."""
    removed: Sequence[Path]
    left: Sequence[Path]
    """Newer than one that is kept but not complete, or none of DeepSpeed's."""


def plan_pruning(run: Path, keep: int) -> Pruning:
    """Choose the checkpoints to remove: all that are older than the newest `keep` that are complete.

    A checkpoint is complete if no file of it is missing, by the headers of all.

    Args:
        run: a folder with folders such as ``checkpoint-1200`` or ``global_step1200``.
        keep: at least 1.

    Raises:
        CheckpointError: there is no such folder, or no complete checkpoint in it.
    """
    if not run.is_dir():
        raise CheckpointError("no such folder", where=shown(run), hint="Name the folder of a run")
    folders = [folder for folder in numbered(run) if not folder.is_symlink()]
    complete = [folder for folder in folders if _is_complete(folder)]
    if not complete:
        raise CheckpointError(
            "has no complete checkpoint, so none is removed",
            where=shown(run),
            hint="Name the folder that checkpoint-1200 or global_step1200 lies in",
        )
    oldest = folders.index(complete[-keep:][0])
    latest = run / "latest"
    named = latest.read_text(encoding="utf-8", errors="replace").strip() if latest.is_file() else None
    removed = [folder for folder in folders[:oldest] if folder.name != named and _is_of_deepspeed(folder)]
    kept = [*(folder for folder in folders[:oldest] if folder.name == named), *complete[-keep:]]
    return Pruning(kept, removed, [folder for folder in folders if folder not in (*kept, *removed)])


def remove(folder: Path) -> None:
    """Remove a checkpoint; half of it is never taken for one.

    Raises:
        CheckpointError: it cannot be removed.
    """
    try:
        doomed = folder.with_name(f".{folder.name}.removing")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise CheckpointError(
            f"cannot be removed: {error.strerror or error}", where=shown(folder), hint="Check its permissions"
        ) from None


def _is_complete(folder: Path) -> bool:
    try:
        read_checkpoint(folder)
    except CheckpointError:
        return False
    return True


def _is_of_deepspeed(folder: Path) -> bool:
    try:
        find_step_folder(folder)
    except CheckpointError:
        return False
    return True

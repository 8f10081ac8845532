"""The hidden folder of checkpoints that are being written or removed: they get their name when complete."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zerokit import staging

UNFINISHED = ".unfinished"
"""Folder of a run for checkpoints that are not complete, or are being removed."""


def unfinished_path(checkpoint: Path) -> Path:
    """Path of a checkpoint before it is complete and while it is removed."""
    return checkpoint.with_name(UNFINISHED) / checkpoint.name


def move_to_unfinished(checkpoint: Path) -> Path:
    """Move a checkpoint that will be removed; return its new path.

    Raises:
        ZerokitError: something that zerokit did not make is at that path.
        OSError: it cannot be moved.
    """
    path = unfinished_path(checkpoint)
    staging.make_staging(path.parent)
    staging.remove(path)
    return checkpoint.rename(path)


def remove_unfinished(path: Path) -> None:
    """Remove a checkpoint that :func:`move_to_unfinished` has moved; a run may be writing others there.

    Raises:
        OSError: it cannot be removed.
    """
    with suppress(FileNotFoundError):  # the run has removed it
        staging.remove(path)
    with suppress(OSError):
        staging.remove_empty(path.parent)


def remove_all_unfinished(run: Path) -> None:
    """Remove everything there that can be removed; only for a run that is not writing there."""
    with suppress(OSError):
        staging.remove(run / UNFINISHED)
        staging.remove_empty(run / UNFINISHED)

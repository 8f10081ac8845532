"""What is no checkpoint of a run yet, or any more, lies in a hidden folder: none has its name by halves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zerokit import staging

UNFINISHED = ".unfinished"
"""Of a run, where its checkpoints lie until they are whole, and while they are removed."""


def unfinished_path(checkpoint: Path) -> Path:
    """Where a checkpoint lies before and after it has its name."""
    return checkpoint.with_name(UNFINISHED) / checkpoint.name


def move_to_unfinished(checkpoint: Path) -> Path:
    """Take its name from a checkpoint that is to be removed; where it lies then.

    Raises:
        ZerokitError: what zerokit did not make lies where it would be moved to.
        OSError: it cannot be moved.
    """
    doomed = unfinished_path(checkpoint)
    staging.make_staging(doomed.parent)
    staging.remove(doomed)
    return checkpoint.rename(doomed)


def remove_unfinished(doomed: Path) -> None:
    """Remove one that :func:`move_to_unfinished` has moved, and no other: a run may be writing one there.

    Raises:
        OSError: it cannot be removed.
    """
    with suppress(FileNotFoundError):  # the run has removed it
        staging.remove(doomed)
    with suppress(OSError):
        staging.remove_empty(doomed.parent)


def remove_all_unfinished(run: Path) -> None:
    """Remove all that lies there, as far as possible: for the run itself, while it writes nothing there."""
    with suppress(OSError):
        staging.remove(run / UNFINISHED)
        staging.remove_empty(run / UNFINISHED)

"""The files that a rehearsal writes."""

from __future__ import annotations

import os
from pathlib import Path

from zerokit.errors import ZerokitError


def check_writable(path: Path) -> None:
    """See that `path` can be written, before anything long begins.

    Raises:
        ZerokitError: it cannot.
    """
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ZerokitError("its folder does not exist", where=str(path), hint=f"Make {folder} first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise unwritable(path, None)


def unwritable(path: str | Path, error: OSError | None) -> ZerokitError:
    """The error for a file that cannot be written."""
    reason = f": {error.strerror}" if error is not None and error.strerror else ""
    return ZerokitError(
        f"cannot be written{reason}", where=str(path), hint="Name a file in a folder you may write to"
    )

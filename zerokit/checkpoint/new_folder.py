"""A folder that appears when it is whole: until then a hidden one lies beside it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from zerokit.documents import is_folder, shown
from zerokit.errors import CheckpointError, ZerokitError
from zerokit.units import format_bytes

_LOCK = ".lock"
"""In an unfinished folder, locked by the process that writes it."""


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Write a hidden folder and, when the block ends well, give it its name.

    What an interrupted process has left in it is still there; of a damaged checkpoint nothing stays.

    Args:
        output: the folder, of :func:`check_output`.

    Raises:
        ZerokitError: it cannot be written, or another process writes it.
    """
    absolute = output.absolute()
    staging = absolute.with_name(f".{absolute.name}.unfinished")
    with _explained(output), _alone(output, staging):
        yield staging
        staging.rename(absolute)
        (absolute / _LOCK).unlink()


def check_output(output: Path) -> None:
    """See that a folder does not exist, or is empty, and that it can be made.

    Raises:
        CheckpointError: it has something in it, or the folder that it is to be in is not there.
    """
    if os.path.lexists(output) and not (is_folder(output) and not any(output.iterdir())):
        raise CheckpointError("exists", where=shown(output), hint="Name a folder that does not exist yet")
    if not output.absolute().parent.is_dir():
        raise CheckpointError(
            "its folder does not exist", where=shown(output), hint=f"Make {shown(output.parent)} first"
        )


def clear(folder: Path, *, kept: Collection[str] = ()) -> None:
    """Remove what an interrupted process has left in an unfinished folder, but for some files."""
    for other in list(folder.iterdir()):
        if other.is_dir():
            shutil.rmtree(other)
        elif other.name not in (*kept, _LOCK):
            other.unlink()


def check_space(output: Path, needed: int) -> None:
    """See that the disk of a folder that is to be has room for `needed` more bytes.

    Raises:
        ZerokitError: it has not.
    """
    folder = output.absolute().parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ZerokitError(
            f"needs {format_bytes(needed)}, and the disk has {format_bytes(free)} left",
            where=shown(folder),
            hint="Make room, or name a folder on another disk",
        )


@contextmanager
def _explained(output: Path) -> Iterator[None]:
    """Say of errors of the system what cannot be written."""
    try:
        yield
    except OSError as error:
        raise ZerokitError(
            f"cannot be written: {error.strerror or error}", where=shown(output), hint="Name another folder"
        ) from None


@contextmanager
def _alone(output: Path, staging: Path) -> Iterator[None]:
    """Keep other exports out of the unfinished folder; of a damaged checkpoint leave nothing."""
    staging.mkdir(exist_ok=True)
    lock = staging / _LOCK
    with lock.open("wb") as opened:
        if not _locked(opened, lock):
            raise ZerokitError(
                "is being written by another process",
                where=shown(output),
                hint="Wait for its end, or name another folder",
            )
        try:
            yield
        except CheckpointError:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def _locked(opened: IO[bytes], lock: Path) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # on a file system without locks
        return True
    # The one that had it may have moved its folder away meanwhile.
    return lock.exists() and os.path.samestat(lock.stat(), os.fstat(opened.fileno()))

"""An output folder that appears when it is complete; until then it is a hidden staging folder."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from zerokit.checkpoint.unfinished import UNFINISHED
from zerokit.documents import is_folder
from zerokit.errors import CheckpointError, ZerokitError, printable
from zerokit.files import explain_write_errors
from zerokit.staging import MARK, check_staging, make_staging, open_private_file, remove
from zerokit.units import format_bytes


@contextmanager
def output_folder(output: Path) -> Iterator[Path]:
    """Write a hidden staging folder and, when the block succeeds, put its files in their place.

    The staging folder becomes the output folder. If that exists and is empty, as a mount point, the staging
    folder is in it, on its disk, and the files are renamed into it, config.json last. Files of an interrupted
    process are still in the staging folder; after a damaged checkpoint it is removed.

    Raises:
        ZerokitError: it cannot be written, or another process writes it.
    """
    target = _target(output)
    staging = _staging(target)
    with explain_write_errors(output, "Name another folder"), _locked_staging(output, staging):
        yield staging
        if staging.parent != target:
            staging.rename(target)
            (target / MARK).unlink()
            return
        for name in sorted({path.name for path in staging.iterdir()} - {MARK}, key="config.json".__eq__):
            (staging / name).rename(target / name)
        remove(staging)


def _target(output: Path) -> Path:
    """Return the folder without links, which stays the same when the current folder is replaced."""
    return Path(os.path.realpath(output))


def _staging(target: Path) -> Path:
    return target / UNFINISHED if target.is_dir() else target.with_name(f".{target.name}{UNFINISHED}")


def check_output(output: Path) -> None:
    """Check that a folder does not exist or is empty, and can be made.

    Raises:
        CheckpointError: it is not empty, or its parent does not exist.
        ZerokitError: the staging folder's name belongs to something that zerokit did not make.
    """
    target = _target(output)
    is_empty = is_folder(target) and {path.name for path in target.iterdir()} <= {UNFINISHED}
    if os.path.lexists(output) and not is_empty:
        raise CheckpointError("exists", where=output, hint="Name a folder that does not exist yet")
    if not target.parent.is_dir():
        raise CheckpointError("its folder does not exist", where=output, hint=f"Make {printable(output.parent)} first")
    check_staging(_staging(target))


def check_space(output: Path, needed: int) -> None:
    """Check that the disk has room for `needed` more bytes. ZerokitError if it has not."""
    target = _target(output)
    folder = target if target.is_dir() else target.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ZerokitError(
            f"needs {format_bytes(needed)}, and the disk has {format_bytes(free)} left",
            where=folder,
            hint="Make room, or name a folder on another disk",
        )


@contextmanager
def _locked_staging(output: Path, staging: Path) -> Iterator[None]:
    """Lock the staging folder; remove it if the checkpoint is damaged."""
    lock = make_staging(staging) / MARK
    with open_private_file(lock) as opened:
        if not _locked(opened, lock):
            raise ZerokitError(
                "is being written by another process", where=output, hint="Wait until it ends, or name another folder"
            )
        try:
            yield
        except CheckpointError:
            with suppress(OSError):
                remove(staging)
            raise


def _locked(opened: IO[str], lock: Path) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # on a file system without locks
        return True
    # The process that had the lock may have renamed its folder.
    return lock.exists() and os.path.samestat(lock.stat(), os.fstat(opened.fileno()))

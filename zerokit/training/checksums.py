"""Checksums of a checkpoint: written before it gets its name, compared when a run is resumed."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from zerokit import console
from zerokit.checkpoint.checksums import (
    SUMS_FILE,
    check_checksums,
    checksums,
    complete_checksums,
    files_of,
    record_num_files,
    write_checksums,
)
from zerokit.checkpoint.pickles import check_pickles
from zerokit.distributed.group import RankGroup
from zerokit.errors import ZerokitError
from zerokit.units import quantity


def publish(group: RankGroup, written: Path, saved: Path) -> str | None:
    """Seal a checkpoint and rename it in one step from `written`, a folder on the same disk, to `saved`.

    Returns:
        why the checkpoint is incomplete, the same on every rank; None if it is complete.
    """
    problem = seal(group, written)
    if problem is None and group.ranks.is_main:
        try:
            if saved.is_symlink():  # a dangling link or a link to a file; a link to a folder is a checkpoint
                saved.unlink()
            written.rename(saved)
            _sync_folders([written.parent, saved.parent])
        except OSError as error:
            problem = _why(error)
    return group.broadcast_object(problem)


def seal(group: RankGroup, folder: Path) -> str | None:
    """Flush a checkpoint to disk and write its ``SHA256SUMS``. Every rank reads its share of the files.

    Returns:
        why the checkpoint is incomplete, the same on every rank; None if it is complete.
    """
    names = group.broadcast_object(files_of(folder) if group.ranks.is_main else [])
    if group.ranks.local_world_size < group.ranks.world_size:
        problem = _unseen(group, folder, names)
        if problem is not None:
            return problem
    parts = group.gather_objects(_synced_sums(folder, _share(names, group)))
    problem = next((part for part in parts if isinstance(part, str)), None if names else "it was removed")
    if problem is not None:
        return problem
    if group.ranks.is_main:
        whole = {name: digest for part in parts if not isinstance(part, str) for name, digest in part.items()}
        problem = _write(folder, whole)
    return group.broadcast_object(problem)


def _unseen(group: RankGroup, folder: Path, names: list[str]) -> str | None:
    """An error about a machine that does not see the files of rank 0, the same on every rank; or None."""
    sees = all((folder / name).exists() for name in names)
    blind = next(filter(None, group.gather_objects("" if sees else socket.gethostname())), None)
    return blind and f"{blind} does not see it: training.output_dir must be on a disk that all machines share"


def _write(folder: Path, sums: dict[str, str]) -> str | None:
    """Write ``SHA256SUMS`` after all of its files are on disk; returns why it cannot be written."""
    try:
        sums |= record_num_files(folder, len(sums))
        _sync_folders([*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent])
        write_checksums(folder, sums)
        _sync_folders([folder])
    except (OSError, ZerokitError) as error:
        return _why(error)
    return None


def _sync_folders(folders: list[Path]) -> None:
    for folder in folders:
        opened = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system supports it
                os.fsync(opened)
        finally:
            os.close(opened)


def _synced_sums(folder: Path, names: list[str]) -> dict[str, str] | str:
    """Flush files to disk and return their SHA-256, or why that failed."""
    try:
        for name in names:
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())  # a full file server reports its error here
        return checksums(folder, names)
    except (OSError, ZerokitError) as error:
        return _why(error)


def _why(error: OSError | ZerokitError) -> str:
    return str(getattr(error, "strerror", None) or error)


def check_resumed(group: RankGroup, folder: Path, *, verify: bool, trusted: bool) -> None:
    """Check that a checkpoint is unchanged and cannot run code; each rank checks its share of the files.

    Args:
        trusted: whether its pickles may load any class.

    Raises:
        CheckpointError: it is damaged, its checksums are incomplete, or it loads an unknown class; on every
            rank.
    """

    def check() -> None:
        sums = complete_checksums(folder) if verify else None
        if sums is None and verify and group.ranks.is_main:
            console.note(f"{folder} has no {SUMS_FILE}: it is not verified")
        if sums is not None:
            check_checksums(folder, {name: sums[name] for name in _share(sorted(sums), group)})
            added = [name for name in files_of(folder) if name not in sums]
            if added and group.ranks.is_main:
                some = f"{quantity(len(added), 'file')}, such as '{added[0]}'"
                console.note(f"{folder} was saved without {some}: not verified")
        if not trusted:
            check_pickles(folder, _share(files_of(folder), group))

    group.together(check)


def _share(names: list[str], group: RankGroup) -> list[str]:
    return names[group.ranks.rank :: group.ranks.world_size]

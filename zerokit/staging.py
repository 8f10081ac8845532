"""Folders, locks and logs at names that zerokit chooses, made without following links.

A name such as ``.unfinished`` in the folder of a run is known beforehand: an archive or another person may
have put a symbolic or hard link there. So zerokit follows no link, writes into no file with several hard
links, and clears or removes only folders that have its mark.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from zerokit.errors import ZerokitError
from zerokit.files import is_own_file, write_file

MARK = ".zerokit-staging"
"""The file that marks a folder as zerokit's own, which it may clear. It may be locked."""


def make_folder(folder: Path) -> None:
    """Make a folder, or accept an existing one.

    Raises:
        ZerokitError: a link or a file has this name.
        OSError: it cannot be made.
    """
    with suppress(FileExistsError):
        folder.mkdir()
    check_own_name(folder)
    if not folder.is_dir():
        problem = "is a file, and zerokit needs a folder of this name"
        raise ZerokitError(problem, where=folder, hint=_MOVE)


def check_own_name(path: Path) -> None:
    """Check that a name is free, or that of a folder, or of a regular file without other hard links.

    Raises:
        ZerokitError: it is not.
    """
    if not os.path.lexists(path) or stat.S_ISDIR(_mode(path)) or is_own_file(path):
        return
    if path.is_symlink():
        problem = "is a link, which zerokit does not follow here"
    elif path.is_file():
        problem = "is one of several names of a file (hard links), which would change with it"
    else:
        problem = "is no regular file"
    raise ZerokitError(problem, where=path, hint="Remove it")


def check_staging(folder: Path) -> None:
    """Check that :func:`make_staging` may make a folder.

    Raises:
        ZerokitError: a link, a file, or a folder with content but without the mark has this name.
    """
    check_own_name(folder)
    problem, hint = ("does not have the mark of this version of zerokit, which needs the name for itself", _LEFT)
    try:
        # In this order: another rank may make it now, and marks it before it fills it.
        is_taken = os.path.lexists(folder) and _has_more_than_mark(folder) and not is_staging(folder)
    except OSError as error:  # a file, or a folder that may not be read
        is_taken, problem, hint = True, f"cannot be used: {error.strerror}", _MOVE
    if is_taken:
        raise ZerokitError(problem, where=folder, hint=hint)


_MOVE = "Move it away, or name another output folder"
_LEFT = "An earlier version may have left it: remove it if you need nothing in it, or move it away"


def make_staging(folder: Path) -> Path:
    """Make a folder with the mark, or accept one that has it. Returns the folder.

    Raises:
        ZerokitError: as :func:`check_staging`.
        OSError: it cannot be made.
    """
    check_staging(folder)
    make_folder(folder)
    _mark(folder)
    return folder


def is_staging(folder: Path) -> bool:
    """Whether a path is a folder with the mark, and not a link."""
    return stat.S_ISDIR(_mode(folder)) and stat.S_ISREG(_mode(folder / MARK))


def clear(folder: Path, *, kept: Collection[str] = ()) -> None:
    """Remove the content of a staging folder, except its mark and the files `kept`.

    Raises:
        OSError: something cannot be removed.
    """
    if is_staging(folder):
        for path in list(folder.iterdir()):
            if path.name not in (MARK, *kept) or stat.S_ISDIR(_mode(path)):
                _remove(path)


def remove(path: Path) -> None:
    """Remove a staging folder or something in one; anything else stays. OSError if it cannot be removed."""
    if is_staging(path):
        clear(path)
        remove_empty(path)
    elif is_staging(path.parent) and os.path.lexists(path):
        _remove(path)


def remove_empty(folder: Path) -> None:
    """Remove a folder that is empty except for the mark."""
    if not stat.S_ISDIR(_mode(folder)) or _has_more_than_mark(folder):
        return
    (folder / MARK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:  # another process has written into it meanwhile
        _mark(folder)


def open_private_file(file: Path, mode: str = "a+", **options: Any) -> IO[Any]:
    """Open a file to lock it, read it or append to it. A missing file is made.

    Raises:
        ZerokitError: it is a link, a file with other hard links, or a special file.
        OSError: it cannot be opened.
    """
    check_own_name(file)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    encoding = None if "b" in mode else "utf-8"
    return os.fdopen(os.open(file, flags, 0o666), mode, encoding=encoding, **options)


def make_private_file(file: Path) -> None:
    """Make a name safe to append to: a link is removed, and a file with other hard links becomes a copy.

    Raises:
        ZerokitError: the copy cannot be written.
        OSError: the link cannot be removed.
    """
    if not os.path.lexists(file) or is_own_file(file):
        return
    if file.is_file() and not file.is_symlink():
        write_file(file, file.read_bytes())
    else:
        file.unlink()


def _mark(folder: Path) -> None:
    with suppress(FileExistsError):
        (folder / MARK).touch(exist_ok=False)


def _has_more_than_mark(folder: Path) -> bool:
    return any(path.name != MARK or path.is_symlink() for path in folder.iterdir())


def _mode(path: Path) -> int:
    """Type and permissions of a path, of a link itself; 0 if there is nothing."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _remove(path: Path) -> None:
    if stat.S_ISDIR(_mode(path)):
        shutil.rmtree(path)
    else:
        path.unlink()

"""Folders, locks and logs at names that zerokit chooses: whatever lies there, nothing else changes.

Such a name, as ``.unfinished`` in the folder of a run, is known beforehand. An archive, a clone or another
person may have put a link or a second name of a file there. So zerokit follows no link, writes into no file
that has other names, and clears or removes only folders that carry its mark.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from zerokit.documents import printable
from zerokit.errors import ZerokitError
from zerokit.files import is_own_file, write_file

MARK = ".zerokit-staging"
"""The file that marks a folder as one that zerokit made, to fill it and to clear it. It may be locked."""


def make_folder(folder: Path) -> None:
    """Make a folder, or accept one that is there.

    Raises:
        ZerokitError: a link or a file is there.
        OSError: it cannot be made.
    """
    with suppress(FileExistsError):
        folder.mkdir()
    check_own_name(folder)
    if not folder.is_dir():
        problem = "is a file, and zerokit needs a folder of this name"
        raise ZerokitError(problem, where=printable(folder), hint=_MOVE)


def check_own_name(path: Path) -> None:
    """See that a name is free, or that of a folder, or the only name of a regular file.

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
    raise ZerokitError(problem, where=printable(path), hint="Remove it")


def check_staging(folder: Path) -> None:
    """See that :func:`make_staging` may make a folder.

    Raises:
        ZerokitError: a link, a file, or a folder without the mark is there that is not empty.
    """
    check_own_name(folder)
    problem, hint = (
        "does not have the mark of this version of zerokit, which needs the name for itself",
        _LEFT,
    )
    try:
        # In this order: another rank may be making it, and marks it before anything else is in it.
        is_taken = os.path.lexists(folder) and _has_more_than_mark(folder) and not is_staging(folder)
    except OSError as error:  # a file, or a folder that may not be read
        is_taken, problem, hint = True, f"cannot be used: {error.strerror}", _MOVE
    if is_taken:
        raise ZerokitError(problem, where=printable(folder), hint=hint)


_MOVE = "Move it away, or name another output folder"
_LEFT = "An earlier version may have left it: remove it if you need nothing in it, or move it away"


def make_staging(folder: Path) -> Path:
    """Make a folder that carries the mark, or accept one that does; the folder.

    Raises:
        ZerokitError: as :func:`check_staging`.
        OSError: it cannot be made.
    """
    check_staging(folder)
    make_folder(folder)
    _mark(folder)
    return folder


def is_staging(folder: Path) -> bool:
    """Whether a path is a folder, no link, that carries the mark."""
    return stat.S_ISDIR(_mode(folder)) and stat.S_ISREG(_mode(folder / MARK))


def clear(folder: Path, *, kept: Collection[str] = ()) -> None:
    """Remove what a staging folder has in it, but for its mark and some files.

    Raises:
        OSError: something cannot be removed.
    """
    if is_staging(folder):
        for path in list(folder.iterdir()):
            if path.name not in (MARK, *kept) or stat.S_ISDIR(_mode(path)):
                _remove(path)


def remove(path: Path) -> None:
    """Remove a staging folder, or what lies in one; leave anything else as it is.

    Raises:
        OSError: it cannot be removed.
    """
    if is_staging(path):
        clear(path)
        remove_empty(path)
    elif is_staging(path.parent) and os.path.lexists(path):
        _remove(path)


def remove_empty(folder: Path) -> None:
    """Remove a folder that has nothing in it, or nothing but the mark."""
    if not stat.S_ISDIR(_mode(folder)) or _has_more_than_mark(folder):
        return
    (folder / MARK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:  # another process has put something there meanwhile
        _mark(folder)


def open_private_file(file: Path, mode: str = "a+", **options: Any) -> IO[Any]:
    """Open a file to lock it, to read it and to add to it; an empty one is made if there is none.

    Args:
        file: the file.
        mode: ``a+`` or ``ab+``.
        options: as of `open`.

    Raises:
        ZerokitError: a link is there, a file that has other names, or a special file.
        OSError: it cannot be opened.
    """
    check_own_name(file)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    encoding = None if "b" in mode else "utf-8"
    return os.fdopen(os.open(file, flags, 0o666), mode, encoding=encoding, **options)


def open_new(file: Path) -> IO[str]:
    """Open an empty file to write to, in the place of what has its name.

    Raises:
        OSError: a folder has its name, or the file cannot be made.
    """
    file.unlink(missing_ok=True)
    return file.open("x", encoding="utf-8")


def make_private_file(file: Path) -> None:
    """Have a name lead to a file of its own, which can be added to, or to nothing: a link is removed.

    A file that has other names is copied, so that these stay as they are.

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
    """Type and permissions of what is there, a link included; 0 if there is nothing."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _remove(path: Path) -> None:
    if stat.S_ISDIR(_mode(path)):
        shutil.rmtree(path)
    else:
        path.unlink()

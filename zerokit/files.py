"""The one writer of files: each is written whole or not at all, and says in one line when it cannot be."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from zerokit.documents import shown
from zerokit.errors import ZerokitError


def write_file(path: str | Path, content: str | bytes, *, force: bool = True) -> None:
    """Write a file in one go; text as UTF-8. See :func:`new_file`."""
    with new_file(path, force=force) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_file(path: str | Path, *, force: bool = True) -> Iterator[IO[bytes]]:
    """Write a file beside `path` and, when the block ends well, put it in its place.

    So nobody ever sees half a file, whatever ends this process. A link stays a link, an existing file
    keeps its permissions, and a device or a pipe is written as it is.

    Args:
        path: the file.
        force: whether an existing file may be replaced.

    Raises:
        ZerokitError: as :func:`check_writable`, or the disk is full.
    """
    check_writable(path, force=force)
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        target = path.resolve()
        temporary = target.with_name(f".{target.name[:50]}.{os.urandom(8).hex()}")
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        raise ZerokitError(
            f"cannot be written: {error.strerror or error}",
            where=shown(path),
            hint="Make room on that disk" if full else "Name a file in a folder you may write to",
        ) from None


def check_writable(path: str | Path, *, force: bool = True) -> None:
    """See that a file can be written, before anything long begins.

    Raises:
        ZerokitError: it is a folder, there is no folder for it, it or its folder is read-only, or it exists
            and `force` is false.
    """
    path = Path(path)
    problem = None
    if path.is_dir():
        problem = "is a folder", "Name a file in it"
    elif not path.exists() or path.is_file():
        folder = path.resolve().parent
        if not folder.is_dir():
            problem = "cannot be written: its folder does not exist", f"Make {folder} first"
        elif path.exists() and not force:
            problem = "the file exists", "Add --force to overwrite it"
        # Whoever may write to a folder may replace what is read-only in it; and root may do anything.
        elif path.exists() and not (path.stat().st_mode & 0o222 and os.access(path, os.W_OK)):
            problem = "cannot be written: the file is read-only", "Name another, or allow it with chmod u+w"
        elif not os.access(folder, os.W_OK):
            problem = "cannot be written: its folder is read-only", "Name a file in another folder"
    if problem is not None:
        raise ZerokitError(problem[0], where=shown(path), hint=problem[1])

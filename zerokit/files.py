"""Writes files atomically. An error of the file system becomes one line."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zerokit.errors import ZerokitError, printable

if TYPE_CHECKING:
    from typing_extensions import Buffer


def cache_folder() -> Path:
    """The user's cache folder of zerokit; it may be missing."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "zerokit"  # noqa: PTH111


@contextmanager
def explain_file_errors() -> Iterator[None]:
    """Turn an OSError about a file into a ZerokitError, such as for a name that is too long.

    Raises:
        ZerokitError: in its place. An OSError without a file name is not changed.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        hint = "Check its name, and what you may do there"
        raise ZerokitError(str(error.strerror), where=error.filename, hint=hint) from None


def json_text(data: Any) -> str:
    """The text of a JSON file that people read."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def write_file(path: str | Path, content: str | bytes, *, force: bool = True, follow_links: bool = False) -> None:
    """Write a file; text as UTF-8. See :func:`new_file`."""
    with new_file(path, force=force, follow_links=follow_links) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_file(path: str | Path, *, force: bool = True, follow_links: bool = False) -> Iterator[IO[bytes]]:
    """Write a temporary file in the same folder, and rename it to `path` when the block ends without error.

    A reader never sees half a file. An existing file keeps its permissions and its owner: if this process
    cannot give the new file that owner, it overwrites the content of the existing file.

    Args:
        force: whether an existing file may be replaced.
        follow_links: for a path that the user named: a link stays a link, a file with several hard links
            keeps them, and a device or pipe is written to. Otherwise the new file replaces any of these, and
            their targets do not change.

    Raises:
        ZerokitError: as :func:`check_writable`, or the disk is full. Other errors are not changed.
    """
    path = Path(path)
    check_writable(path, force=force, follow_links=follow_links)
    if follow_links and path.exists() and not path.is_file():
        with io.BufferedWriter(_Output(path, path)) as file:
            yield file
        return
    target = path.resolve() if follow_links else path
    old = target if follow_links or is_own_file(target) else None
    temporary = target.with_name(f".{target.name[:50]}.{os.urandom(8).hex()}")
    try:
        with io.BufferedWriter(_Output(path, temporary, old)) as file:
            yield file
            file.flush()
            with explain_write_errors(path):
                os.fsync(file.fileno())
        with explain_write_errors(path):
            if old is None or _can_be_replaced(old, temporary):
                temporary.replace(target)
            else:
                _write_over(target, temporary)
    finally:
        temporary.unlink(missing_ok=True)


def is_own_file(path: Path) -> bool:
    """Whether a path is a regular file with a single hard link, and not a link itself.

    Some file systems report 0 hard links for every file.
    """
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _can_be_replaced(old: Path, new: Path) -> bool:
    """Whether `new` may replace `old`: it gets its owner, and `old` has no other hard link."""
    if not old.exists():
        return True
    before, after = old.stat(), new.stat()
    if before.st_nlink > 1:
        return False
    if (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid):
        try:
            os.chown(new, before.st_uid, before.st_gid)
            new.chmod(stat.S_IMODE(before.st_mode))  # chown clears some bits
        except OSError:
            return False
    return True


def _write_over(old: Path, new: Path) -> None:
    with new.open("rb") as source, old.open("r+b") as file:
        shutil.copyfileobj(source, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


class _Output(io.FileIO):
    """A file that explains its own errors; it gets the permissions of the file `like`."""

    def __init__(self, named: Path, path: Path, like: Path | None = None) -> None:
        self._named = named
        with explain_write_errors(named):
            # As private as the old file before it has any content.
            mode = stat.S_IMODE(like.stat().st_mode) if like is not None and like.exists() else None
            opener = partial(os.open, mode=0o666 if mode is None else mode)
            super().__init__(path, "w" if like is None else "x", opener=opener)
            if mode is not None:
                path.chmod(mode)  # the umask may have removed bits

    def write(self, content: Buffer, /) -> int:
        with explain_write_errors(self._named):
            return super().write(content)


@contextmanager
def explain_write_errors(path: Path, hint: str | None = None) -> Iterator[None]:
    """Turn an OSError into one line that says why `path` cannot be written.

    Args:
        hint: what to do; None: chosen by the error.

    Raises:
        ZerokitError: in place of an OSError of the block.
    """
    try:
        yield
    except OSError as error:
        hints = {errno.ENOSPC: "Make room on that disk", errno.ENAMETOOLONG: "Choose a shorter name"}
        raise ZerokitError(
            f"cannot be written: {error.strerror or error}",
            where=path,
            hint=hint or hints.get(error.errno or 0, "Name a file in a folder you may write to"),
        ) from None


def check_writable(path: str | Path, *, force: bool = True, follow_links: bool = False) -> None:
    """Check that a file can be written, before long work begins. For the arguments see :func:`new_file`.

    Raises:
        ZerokitError: it is a folder, there is no folder for it, it or its folder is read-only, or it exists
            and `force` is false.
    """
    path = Path(path)
    problem = None
    with explain_write_errors(path):
        with suppress(FileNotFoundError, NotADirectoryError):
            # Not every Python reports a name that is too long, or a link to itself, below.
            path.stat(follow_symlinks=follow_links)
        is_replaced = not follow_links and path.is_symlink()
        is_there = is_replaced or path.exists()
        if path.is_dir() and not is_replaced:
            problem = "is a folder", "Name a file in it"
        elif not follow_links or not is_there or path.is_file():
            folder = (path.resolve() if follow_links else path.absolute()).parent
            there = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
            if not there.is_dir():
                problem = f"cannot be written: {printable(there)} is not a folder", "Name a file in a folder"
            elif there != folder:
                problem = "cannot be written: its folder does not exist", f"Make {folder} first"
            elif is_there and not force:
                problem = "the file exists", "Add --force to overwrite it"
            # A read-only file could be replaced if the folder is writable, and root may write any file.
            elif is_there and not is_replaced and not (path.stat().st_mode & 0o222 and os.access(path, os.W_OK)):
                problem = "cannot be written: the file is read-only", "Name another, or try chmod u+w"
            elif not os.access(folder, os.W_OK):
                problem = "cannot be written: its folder is read-only", "Name a file in another folder"
    if problem is not None:
        raise ZerokitError(problem[0], where=path, hint=problem[1])

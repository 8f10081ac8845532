"""Folders of a rehearsal: gone when it ends or, if it was killed, when the next one begins."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zerokit.errors import ZerokitError
from zerokit.staging import MARK, is_staging, open_private_file

_PREFIX = "zerokit-rehearsal-"


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """An empty folder below `parent`, the system's folder of temporary files if None.

    This process holds a file beside it locked. The next rehearsal removes folders without a lock.
    """
    for left in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, ZerokitError):  # another user's, or in use
            if not is_staging(left):
                continue
            with open_private_file(left / MARK) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    folder = home / "files"
    folder.mkdir()
    with open_private_file(home / "new") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (home / "new").rename(home / MARK)
        try:
            yield folder
        finally:
            _remove(home)


def _remove(home: Path) -> None:
    """Remove the lock last: a folder that is still written to is left for the next rehearsal."""
    shutil.rmtree(home / "files", ignore_errors=True)
    if not (home / "files").exists():
        shutil.rmtree(home, ignore_errors=True)

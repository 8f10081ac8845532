"""Remembers digests of files between runs, so that zerokit does not read unchanged files again.

A file counts as unchanged if its device, inode, size, time of modification and time of status change (ctime)
are the same. ``cp -p``, rsync and tar set the time of modification, but no program can set the ctime.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from zerokit.documents import file_system, read_bytes
from zerokit.errors import ZerokitError
from zerokit.files import cache_folder, write_file

_FILE = "digests.json"
_MAX_ENTRIES = 20_000
_MAX_BYTES = 4 << 20
_SETTLED_NS = 2_000_000_000
"""File systems round times. A file that changed later than this may change again with the same ctime."""
_NO_CTIME = ("fuse", "cifs", "smb", "9p", "vfat", "msdos", "exfat", "ntfs")
"""How types of file systems begin that may report another time as the ctime, or number inodes anew."""


class DigestCache:
    """Digests of files by the states of the files."""

    def __init__(self) -> None:
        """Read the remembered digests; a damaged file counts as empty."""
        self._file = cache_folder() / _FILE
        self._digests = _read(self._file)
        self._new: dict[str, str] = {}

    def get(self, kind: str, files: Sequence[Path], compute: Callable[[], str]) -> str:
        """The digest of files: the remembered one, or the result of `compute`."""
        key = _key(kind, files)
        if key is not None and key in self._digests:
            return self._digests[key]
        digest = compute()
        if key is not None and _key(kind, files) == key:
            self._digests[key] = self._new[key] = digest
        return digest

    def save(self) -> None:
        """Write the digests if there are new ones, and forget the oldest; do nothing if that fails."""
        if not self._new:
            return
        digests = {**_read(self._file), **self._new}  # another process may have written meanwhile
        newest = dict(islice(digests.items(), max(0, len(digests) - _MAX_ENTRIES), None))
        with suppress(OSError, ZerokitError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._file, json.dumps(newest, indent=0))
        self._new = {}


@contextmanager
def digest_cache() -> Iterator[DigestCache]:
    """The remembered digests; new ones are saved when the block ends."""
    cache = DigestCache()
    try:
        yield cache
    finally:
        cache.save()


def _read(file: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, RecursionError, ZerokitError):
        content = read_bytes(file, max_bytes=_MAX_BYTES, folder=file.parent)
        digests = json.loads(content) if len(content) <= _MAX_BYTES else None
        if isinstance(digests, dict) and all(isinstance(digest, str) for digest in digests.values()):
            return digests
    return {}


def _key(kind: str, files: Iterable[Path]) -> str | None:
    """The name of a digest in the cache; None if the state of a file does not identify its content."""
    states = []
    latest = time.time_ns() - _SETTLED_NS
    for file in files:
        try:
            found = file.stat()
        except OSError:
            return None
        if found.st_ctime_ns > latest or file_system(found.st_dev).startswith(_NO_CTIME):
            return None
        states.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return hashlib.sha256(json.dumps([kind, states]).encode()).hexdigest()[:32]

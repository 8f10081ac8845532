"""Remembers results between runs of zerokit: searches for the best plans, and rehearsals.

Each result is a file in the user's cache folder, named by the digest of what it is the result of. A damaged
file, a link and a file that cannot be written count as absent: results are computed again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from zerokit.documents import read_bytes
from zerokit.errors import ZerokitError
from zerokit.files import cache_folder, is_own_file, write_file

MAX_BYTES = 64 << 20
"""Of all results together; the files that were written first are removed."""
_FOLDER = "plans"


def remembered(key: Any) -> Any | None:
    """The result for a key; None if there is none.

    Args:
        key: a JSON value that identifies the result, including what computes it (:func:`code_state`).
    """
    folder = _folder()
    file = folder / _name(key)
    if folder.is_symlink() or not is_own_file(file):
        return None
    with suppress(OSError, ValueError, RecursionError, ZerokitError):
        content = read_bytes(file, max_bytes=MAX_BYTES, folder=folder)
        digest, _, text = content.partition(b"\n")
        if digest.decode() == hashlib.sha256(text).hexdigest():
            return json.loads(text)
    return None


def remember(key: Any, result: Any) -> None:
    """Write the result for a key, and remove the oldest results above `MAX_BYTES`; do nothing if that fails.

    Args:
        result: a JSON value other than None.
    """
    text = json.dumps(result, separators=(",", ":")).encode()
    if len(text) > MAX_BYTES // 4:
        return
    folder = _folder()
    with suppress(OSError, ZerokitError):
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            return
        write_file(folder / _name(key), hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        _remove_oldest(folder)


@cache
def code_state() -> str:
    """A digest of zerokit's own files by name, size and time, so that results of other code do not count."""
    package = Path(__file__).parents[1]
    states = [
        (str(file.relative_to(package)), found.st_size, found.st_mtime_ns)
        for pattern in ("*.py", "*.json", "*.cpp", "*.h")
        for file in sorted(package.rglob(pattern))
        for found in (file.stat(),)
    ]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _folder() -> Path:
    return cache_folder() / _FOLDER


def _name(key: Any) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:40] + ".json"


def _remove_oldest(folder: Path) -> None:
    """Raises OSError if another process removes results, too; the next write tries again."""
    states = {file: file.lstat() for file in folder.iterdir() if is_own_file(file)}
    total = 0
    for file, found in sorted(states.items(), key=lambda one: one[1].st_mtime_ns, reverse=True):
        total += found.st_size
        if total > MAX_BYTES:
            file.unlink()

"""Digests of data files by content: a file that replaces another may have the same path, size and time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from zerokit.data.files import report_read_errors
from zerokit.digest_cache import DigestCache, digest_cache
from zerokit.errors import DataError

_BLOCK = 1 << 20
"""Bytes to read at once."""

SAMPLED_BYTES = 1 << 30
"""Most bytes that :func:`sampled_digest` reads."""


@dataclass(frozen=True)
class FileContent:
    """The digest of a file, and the state of the file when it was read."""

    digest: str
    state: tuple[int, ...] = field(compare=False)


def digest_files(files: Iterable[Path]) -> dict[Path, FileContent]:
    """The content of each file; reads only files that changed since their last digest. Raises DataError."""
    with digest_cache() as digests:
        return {file: _content_of(file, digests) for file in dict.fromkeys(files)}


def file_state(file: Path) -> tuple[int, ...]:
    """Inode, size and time of a file, which differ if it changes; some FUSE file systems change the inode."""
    state = file.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def check_unchanged(file: Path, content: FileContent) -> None:
    """Check that a file still has the content that was read; raises DataError if not."""
    if file_state(file) != content.state and _digest_file(file) != content.digest:
        raise DataError("the file was changed while it was read", where=file, hint="Start again")


def _content_of(file: Path, digests: DigestCache) -> FileContent:
    with report_read_errors(file):
        state = file_state(file)
    return FileContent(digests.get("xxh3_128 of a file", [file], lambda: _digest_file(file)), state)


def _digest_file(file: Path) -> str:
    from xxhash import xxh3_128  # 5 GB/s, three times as fast as SHA-256

    digest, buffer = xxh3_128(), memoryview(bytearray(_BLOCK))
    with report_read_errors(file), file.open("rb", buffering=0) as content:
        while size := content.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()


def sampled_digest(files: Sequence[Path]) -> str:
    """A digest of sizes of files and of at most 1 GiB of content, spread evenly. Raises DataError."""
    with digest_cache() as digests:
        return digests.get(f"xxh3_128 of {SAMPLED_BYTES} bytes", files, lambda: _sample(files))


def _sample(files: Sequence[Path]) -> str:
    from xxhash import xxh3_128

    digest = xxh3_128()
    sizes = []
    for file in files:
        with report_read_errors(file):
            sizes.append(file.stat().st_size)
    stride = _BLOCK * max(1, -(-sum(sizes) // SAMPLED_BYTES))
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"{size};".encode())
        with report_read_errors(file), file.open("rb", buffering=0) as content:
            for start in range(0, size, stride):
                content.seek(start)
                digest.update(content.read(_BLOCK))
    return digest.hexdigest()


@cache
def code_digest(package: str) -> str:
    """A digest of the source files and tables of a package of zerokit, such as ``data``."""
    folder = Path(__file__).parent.parent / package
    sources = (file for ending in ("py", "json") for file in folder.rglob(f"*.{ending}"))
    return digest_of(sorted(source.read_text(encoding="utf-8") for source in sources))


def digest_of(value: Any) -> str:
    from xxhash import xxh3_128

    return xxh3_128(json.dumps(value).encode()).hexdigest()

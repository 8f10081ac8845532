"""A digest of a model's weights, by which a resumed run notices that its base model has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zerokit.checkpoint.safetensors_file import read_header
from zerokit.checkpoint.source import weight_files
from zerokit.digest_cache import digest_cache
from zerokit.errors import ModelError

ALGORITHM = "xxh3_128"
_CHUNK_BYTES = 8 << 20
_MOST_THREADS = 16


def weights_digest(folder: Path, *, where: str) -> str:
    """A digest of name, type, shape and bytes of each tensor, independent of the division into files.

    If a file has changed since the digest was computed, threads read all files once, at the speed of the
    disk: xxHash takes some GB/s per core. It finds accidental changes and does not protect against forgery.

    Returns:
        the algorithm, a colon and the digest in hexadecimal.

    Raises:
        ModelError: see :func:`weight_files`, or a file is damaged.
    """
    files = weight_files(folder, where=where)
    with digest_cache() as digests:
        return digests.get(f"{ALGORITHM} of tensors", files, lambda: _compute(files, where))


def _compute(files: Sequence[Path], where: str) -> str:
    import xxhash  # which datasets needs, too

    tensors = sorted(tensor for file in files for tensor in _tensors(file, where))
    digest = xxhash.xxh3_128()
    pool = ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0))))
    try:
        chunks = [
            pool.submit(_chunk_digest, file, offset, min(_CHUNK_BYTES, end - offset), where)
            for _, _, file, begin, end in tensors
            for offset in range(begin, end, _CHUNK_BYTES)
        ]
        for name, described, *_ in tensors:
            digest.update(f"{name} {described}\n".encode())
        for chunk in chunks:
            digest.update(chunk.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return f"{ALGORITHM}:{digest.hexdigest()}"


def _tensors(file: Path, where: str) -> Iterator[tuple[str, str, Path, int, int]]:
    """Name, type and shape, file, and byte range of each tensor."""
    try:
        with file.open("rb") as opened:
            elements, header = read_header(opened)
            size = os.fstat(opened.fileno()).st_size
        for name, entry in header.items():
            begin, end = (elements + offset for offset in entry["data_offsets"])
            if not elements <= begin <= end <= size:
                raise ValueError(f"'{name}' exceeds the file")
            yield name, f"{entry['dtype']} {entry['shape']}", file, begin, end
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file, error, where) from None


def _chunk_digest(file: Path, offset: int, length: int, where: str) -> bytes:
    import xxhash

    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            content = opened.read(length)
        if len(content) < length:
            raise ValueError("it ends within its tensors")
    except (OSError, ValueError) as error:
        raise _damaged(file, error, where) from None
    return xxhash.xxh3_128_digest(content)


def _damaged(file: Path, error: Exception, where: str) -> ModelError:
    return ModelError(f"{file} is damaged ({error})", where=where, hint="Copy it again")

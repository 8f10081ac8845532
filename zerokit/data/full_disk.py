"""A full disk beneath the cache of ``datasets``, which lies elsewhere than the data and what a run writes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from zerokit.errors import DataError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_told() -> Iterator[None]:
    """Raise DataError where `datasets` finds no room to load or tokenize; also as a decorator.

    What it had begun to write is `datasets`' to remove, and is made anew the next time.

    Raises:
        DataError: there is none. Other errors of the block are its own.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_full_disk(error):
            raise
        from datasets import config

        raise DataError(
            "no room is left on the disk of the cache of datasets",
            where=str(config.HF_DATASETS_CACHE),
            hint="Make room there, or set HF_DATASETS_CACHE to a folder on another disk",
        ) from error


def _is_of_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that it came of, is that: `datasets` raises others of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False

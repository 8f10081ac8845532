"""Reports a full disk below a cache of Hugging Face, which is elsewhere than the data and the run's files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerokit.errors import DataError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_TOO_LITTLE = "Not enough disk space"
"""Message of `datasets` if its cache lacks room (`download_and_prepare` in builder.py)."""


@contextmanager
def report_full_disk() -> Iterator[None]:
    """Raise DataError if there is no room to download, load or tokenize data; also as a decorator."""
    try:
        yield
    except Exception as error:
        full = _of_full_disk(error)
        if full is None:
            raise
        raise _no_room(full) from error


def _of_full_disk(error: BaseException | None) -> OSError | None:
    """The error of a full disk in a chain of errors: `datasets` wraps it in others."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno in _NO_ROOM or str(error).startswith(_TOO_LITTLE)):
            return error
        error = error.__cause__ or error.__context__
    return None


def _no_room(full: OSError) -> DataError:
    """The error to report. Few errors name a file; most writes go to the cache of datasets."""
    from datasets import config
    from huggingface_hub import constants

    what, variable, folder = "the cache of datasets", "HF_DATASETS_CACHE", Path(config.HF_DATASETS_CACHE)
    if isinstance(full.filename, str):
        file, of_hub = Path(full.filename).absolute(), Path(constants.HF_HUB_CACHE)
        if file.is_relative_to(of_hub.absolute()):
            what, variable, folder = "the cache of the Hub", "HF_HUB_CACHE", of_hub
        elif not file.is_relative_to(folder.absolute()):
            return DataError("no room is left on its disk", where=file.parent, hint="Make room there")
    return DataError(
        f"no room is left on the disk of {what}",
        where=folder,
        hint=f"Make room there, or set {variable} to a folder on another disk",
    )

"""The Hugging Face Hub: valid names, the cache folder, and reasons of failed requests."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


def is_hub_id(name: str) -> bool:
    """Whether `name` can be a Hub id: ``owner/name``, or ``name`` for the oldest models and data sets."""
    return _HUB_ID.fullmatch(name) is not None


def hub_cache_folder() -> Path:
    """The cache of huggingface_hub; without importing it. Source: its `constants.py`."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(variable):
            return _expanded(folder)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def cached_repository(name: str, kind: str = "model") -> Path:
    """The folder of a repository in that cache; `kind` is model, dataset or space.

    Source: huggingface_hub's cache layout, ``models--owner--name/{refs,snapshots}``.
    """
    return hub_cache_folder() / f"{kind}s--{name.replace('/', '--')}"


def _expanded(folder: str) -> Path:
    # Path.expanduser raises an error if there is no home.
    return Path(os.path.expandvars(os.path.expanduser(folder)))  # noqa: PTH111


def failure_reason(error: Exception) -> str:
    """Why a request failed: no network, no such repository, no access. In the library's own words."""
    return _no_way(error) or next(iter(str(error).strip().splitlines()), type(error).__name__)


def describe_failure(error: Exception, what: str = "it") -> str:
    """Text that says that the Hub cannot be reached, or did not give `what`, with the reason."""
    return _no_way(error) or f"the Hub did not give {what}: {failure_reason(error)}"


def _no_way(error: Exception) -> str | None:
    """Text that says that the Hub cannot be reached, from the OSError that libraries have wrapped."""
    import socket
    import ssl  # only here: they cost every light command 10 ms

    of_networks = (socket.gaierror, ConnectionError, TimeoutError, ssl.SSLError)
    for one in _chain(error):
        words = one.strerror or (str(one) if isinstance(one, TimeoutError) else "")
        if words and (isinstance(one, of_networks) or one.errno in _NO_ROUTE):
            return f"the Hub cannot be reached ({words})"
    return None


def _chain(error: BaseException | None) -> Iterator[OSError]:
    while error is not None:
        if isinstance(error, OSError):
            yield error
        error = error.__cause__ or error.__context__

"""A Hub model's config.json and weights in the local cache, and the download of its config.json."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from zerokit.documents import MAX_TABLE_BYTES, read_bytes, read_document
from zerokit.errors import DocumentError, ModelError
from zerokit.hub import cached_repository, describe_failure

_RESOLVE_SECONDS = 2.0
"""Timeout in seconds for the Hub's address: without a network, some resolvers never answer."""
_ANSWER_SECONDS = 10.0
"""Timeout in seconds for its answer with redirects, as in huggingface_hub's `constants.py`."""
_WEIGHTS = re.compile(r"(?P<kind>model|pytorch_model)(-\d+-of-(?P<parts>\d+))?\.(safetensors|bin)")
"""Weight files, whole or in parts, by transformers' names (`utils/__init__.py`)."""


def cached_config(name: str, revision: str | None = None) -> Path | None:
    """The config.json in huggingface_hub's cache, or None; huggingface_hub is not imported."""
    folder = cached_repository(name)
    wanted = revision or "main"
    reference = folder / "refs" / wanted
    try:
        commit = read_bytes(reference).decode().strip() if reference.is_file() else wanted
        file = folder / "snapshots" / commit / "config.json"
        return file if file.is_file() else None
    except (OSError, DocumentError, UnicodeDecodeError):
        return None


def has_cached_weights(name: str, revision: str | None = None) -> bool:
    """Whether all weight files of a model are in the cache, by its index or by their names."""
    config = cached_config(name, revision)
    if config is None:
        return False
    for weights in ("model.safetensors", "pytorch_model.bin"):
        index = config.with_name(f"{weights}.index.json")
        with suppress(DocumentError, KeyError, TypeError, AttributeError):
            shards = set(read_document(index, max_bytes=MAX_TABLE_BYTES).data["weight_map"].values())
            if shards and all((config.parent / shard).is_file() for shard in shards):
                return True
    files = [_WEIGHTS.fullmatch(file.name) for file in config.parent.iterdir() if file.is_file()]
    found = Counter((match["kind"], int(match["parts"] or 1)) for match in files if match)
    return any(count >= parts for (_, parts), count in found.items())


def ask_hub(name: str, revision: str | None = None) -> None:
    """Check that the Hub has a model and allows access; nothing is downloaded.

    Raises:
        ModelError: there is no network, no such model, or no access.
    """
    with _explain_failure(name):
        _request(name, revision)


def download_config(name: str, revision: str | None = None) -> Path:
    """Download only config.json, into huggingface_hub's cache.

    Raises:
        ModelError: there is no network, no such model, or no access.
    """
    with _explain_failure(name):
        from huggingface_hub import hf_hub_download

        # Without a connection a download retries for 23 s; a request for metadata does not.
        _request(name, revision)
        return Path(hf_hub_download(name, "config.json", revision=revision))


@contextmanager
def _explain_failure(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ModelError(
            f"'{name}' is not on this machine, and huggingface_hub, which would download its config.json, "
            "is not installed",
            where="model",
            hint="Install huggingface_hub, name a local config.json, or what zerokit models lists",
        ) from None
    except Exception as error:
        raise ModelError(
            f"'{name}' is not on this machine, and {describe_failure(error, 'its config.json')}",
            where="model",
            hint="Check the name (zerokit models lists those that need no network), the network, and "
            "`hf auth login` for a gated model",
        ) from error


def _request(name: str, revision: str | None) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(name, "config.json", revision=revision)
    seconds = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or _ANSWER_SECONDS)
    if not constants.HF_HUB_OFFLINE:
        _with_timeout(lambda: _resolve_host(url), min(_RESOLVE_SECONDS, seconds))
    _with_timeout(lambda: get_hf_file_metadata(url, timeout=seconds), seconds)


def _resolve_host(url: str) -> None:
    """Resolve the host of a URL, unless a proxy does. OSError if it cannot be resolved."""
    import socket
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    if proxy_bypass(host) or not {parts.scheme, "all"} & getproxies().keys():
        socket.getaddrinfo(host, parts.port)


def _with_timeout(ask: Callable[[], object], seconds: float) -> None:
    """Call `ask` in a thread, because name resolution has no timeout; abandon the thread after `seconds`.

    Raises:
        TimeoutError: there was no answer in time.
        Exception: any error of `ask`.
    """
    failure: list[Exception] = []

    def asking() -> None:
        try:
            ask()
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=asking, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {seconds:g} s, the limit that HF_HUB_ETAG_TIMEOUT sets")
    if failure:
        raise failure[0]

"""A Hub model's config.json: from the local cache, or downloaded alone."""

from __future__ import annotations

import os
from pathlib import Path

from zerokit.documents import read_bytes
from zerokit.errors import DocumentError, ModelError
from zerokit.hub import reason


def cached_config(name: str, revision: str | None = None) -> Path | None:
    """The config.json in huggingface_hub's cache on this machine, or None; huggingface_hub is not imported.

    Source: huggingface_hub's cache layout, `models--owner--name/{refs,snapshots}`.
    """
    folder = _cache_folder() / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    reference = folder / "refs" / wanted
    try:
        commit = read_bytes(reference).decode().strip() if reference.is_file() else wanted
        file = folder / "snapshots" / commit / "config.json"
        return file if file.is_file() else None
    except (OSError, DocumentError, UnicodeDecodeError):
        return None


def download_config(name: str, revision: str | None = None) -> Path:
    """Download config.json, and nothing else, into huggingface_hub's cache.

    Raises:
        ModelError: no network, no such model, or no access to it.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModelError(
            f"'{name}' is not on this machine, and huggingface_hub, which would download its config.json, "
            "is not installed",
            where="model",
            hint="Install huggingface_hub, name a local config.json, or what zerokit models lists",
        ) from None
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision))
    except Exception as error:
        raise ModelError(
            f"'{name}' is not on this machine, and the Hub did not give its config.json: {reason(error)}",
            where="model",
            hint="Check the name (zerokit models lists those that need no network), the network, and "
            "`hf auth login` for a gated model",
        ) from error


def _cache_folder() -> Path:
    """Source: huggingface_hub `constants.py`."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "huggingface" / "hub"

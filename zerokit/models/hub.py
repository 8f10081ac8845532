"""A Hub model's config.json: from the local cache, or downloaded alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zerokit.errors import ModelError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(name: str) -> bool:
    """Whether `name` can be a Hub id: ``owner/name``, or ``name`` for the oldest models."""
    return _HUB_ID.fullmatch(name) is not None


def cached_config(name: str, revision: str | None = None) -> Path | None:
    """The config.json in huggingface_hub's cache on this machine, or None; huggingface_hub is not imported.

    Source: huggingface_hub's cache layout, `models--owner--name/{refs,snapshots}`.
    """
    folder = _cache_folder() / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    reference = folder / "refs" / wanted
    try:
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else wanted
    except (OSError, UnicodeDecodeError):
        return None
    file = folder / "snapshots" / commit / "config.json"
    return file if file.is_file() else None


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
            hint="Install huggingface_hub, or name a local config.json",
        ) from None
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision))
    except Exception as error:
        # No network, no such repository, gated: the library's own words say which.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"'{name}' is not on this machine, and the Hub did not give its config.json: {reason}",
            where="model",
            hint="Check the name, the network, and `hf auth login` for a gated model",
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

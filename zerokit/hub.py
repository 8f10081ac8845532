"""The Hugging Face Hub: what can be a name there, and what it says when it does not give something."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(name: str) -> bool:
    """Whether `name` can be a Hub id: ``owner/name``, or ``name`` for the oldest models and data sets."""
    return _HUB_ID.fullmatch(name) is not None


def reason(error: Exception) -> str:
    """Why the Hub did not give something: no network, no such repository, gated. The library's own words."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

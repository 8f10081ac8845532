"""Names that are other ones with a typing error."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

from zerokit.errors import nearest

_ALIKE = 0.8
"""From here on: ``q_porj`` and ``q_proj``; other models' names for the same layer are less alike."""


def mistyped(name: str, choices: Iterable[str]) -> str | None:
    """The choice that a name plainly is but for a typing error; None for one in other letters' case, too."""
    close = nearest(name, choices)
    if close is None or close.lower() == name.lower():
        return None
    return close if SequenceMatcher(None, name.lower(), close.lower()).ratio() >= _ALIKE else None

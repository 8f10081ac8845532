"""How many examples hypothesis tries."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = 100  # hypothesis's own


def examples(count: int, **more: Any) -> settings:
    """Settings for `count` examples in the full profile, and for the usual share of them in the quick one.

    Args:
        count: examples of the full profile.
        more: other settings of hypothesis.
    """
    return settings(max_examples=max(1, count * settings.default.max_examples // _USUAL), **more)

"""How many examples hypothesis tries."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = 100  # hypothesis's own


def examples(count: int, **more: Any) -> settings:
    """Settings for `count` examples where all are tried, and for the usual share of them in other profiles.

    Args:
        count: examples with ZEROKIT_ALL_COMBINATIONS=1.
        more: other settings of hypothesis.
    """
    return settings(max_examples=max(1, count * settings.default.max_examples // _USUAL), **more)

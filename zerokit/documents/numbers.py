"""Numbers of documents: how large they may be, and how long ones are shown."""

from __future__ import annotations

import sys

_SHOWN_DIGITS = 40


def fits_float(number: int | float) -> bool:
    """Whether a number is of a size that can be computed with: an integer beyond it can only be written."""
    return -sys.float_info.max <= number <= sys.float_info.max


def shortened(text: str) -> str:
    """The text of a number as an error shows it."""
    return text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}..."

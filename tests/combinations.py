"""What of many like combinations `make test` leaves out: ZEROKIT_ALL_COMBINATIONS=1 runs it, too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

ALL = os.environ.get("ZEROKIT_ALL_COMBINATIONS") == "1"
REST = pytest.mark.skipif(not ALL, reason="set ZEROKIT_ALL_COMBINATIONS=1 to run all of them")
"""Marks a combination like one that is always run."""


def sample(values: Sequence[Any], number: int) -> list[Any]:
    """Parameters of a test: the first `number` values, and the others as REST; a tuple has several parameters."""
    marks = [()] * number + [(REST,)] * (len(values) - number)
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
        for value, mark in zip(values, marks, strict=True)
    ]

"""What of many like combinations `make test` leaves out: ZEROKIT_ALL_COMBINATIONS=1 runs it, too."""

from __future__ import annotations

import os

import pytest

ALL = os.environ.get("ZEROKIT_ALL_COMBINATIONS") == "1"
REST = pytest.mark.skipif(not ALL, reason="set ZEROKIT_ALL_COMBINATIONS=1 to run all of them")
"""Marks a combination like one that is always run."""

"""The record of sequence parallelism: every case, as near to one process as rounding allows."""

from __future__ import annotations

import json

import pytest

from tests.validation.parallelism.runs import CASES
from tests.validation.parallelism.sequence import RECORD

pytestmark = pytest.mark.torch


def test_every_recorded_case_is_that_of_one_process() -> None:
    found = json.loads(RECORD.read_text())["differences"]
    assert set(found) == {str(case) for case in CASES}
    assert max(value for each in found.values() for value in each.values()) < 1e-5

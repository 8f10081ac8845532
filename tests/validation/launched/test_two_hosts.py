"""Two hosts train like one, and end when the cable is pulled; `hosts_drill` has all cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.validation.launched.hosts_drill import CASES, on_one_host, prepared, run
from tests.validation.launched.two_hosts import missing

pytestmark = [pytest.mark.distributed, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
SAMPLE = [case for case in CASES if case.name in ("train, ZeRO-3, pdsh", "cable pulled, torchrun")]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with prepared() as made:
        yield made


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_what_happens_on_two_hosts(case, folder: Path) -> None:
    row = run(case, folder, None if case.says else on_one_host(case, folder))
    assert row["wrong"] == [], row["said"]

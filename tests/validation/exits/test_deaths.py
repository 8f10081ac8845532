"""Real ways to die, told rightly; tests.validation.exits.real_deaths has all of them."""

from __future__ import annotations

import pytest

from tests.validation.exits.deaths import DEATHS, Death
from tests.validation.exits.real_deaths import row

pytestmark = pytest.mark.distributed

SAMPLE = [
    death
    for death in DEATHS
    if (death.name, death.launcher)
    in {("an abort in one rank (-6)", "torchrun"), ("other shapes in a collective", "torchrun")}
]


@pytest.mark.parametrize("death", SAMPLE, ids=lambda death: death.name)
def test_a_real_death_has_its_name(death: Death) -> None:
    told = row(death)
    assert told["right"], told

"""Real ways to die, told rightly; tests.validation.exits.real_deaths has all of them."""

from __future__ import annotations

import pytest

from tests.combinations import REST
from tests.validation.exits.deaths import DEATHS, Death
from tests.validation.exits.real_deaths import row

pytestmark = pytest.mark.distributed

ABORT, SHAPES = (
    next(death for death in DEATHS if (death.name, death.launcher) == (name, "torchrun"))
    for name in ("an abort in one rank (-6)", "other shapes in a collective")
)


@pytest.mark.parametrize(
    "death", [pytest.param(ABORT, marks=REST), pytest.param(SHAPES)], ids=lambda death: death.name
)
def test_a_real_death_has_its_name(death: Death) -> None:
    told = row(death)
    assert told["right"], told

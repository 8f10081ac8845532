"""``zerokit models``."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.cli.conftest import refused
from zerokit.models import load_model_shape
from zerokit.models.catalogue import entries

Run = Callable[..., tuple[int, str, str]]


def test_every_model_of_the_catalogue_has_a_line(zerokit: Run) -> None:
    code, out, err = zerokit("models")
    assert (code, err) == (0, "")
    title, *lines = out.splitlines()
    assert title.split() == ["name", "type", "parameters", "layers", "hidden", "longest", "Hub", "id"]
    assert [line.split()[-1] for line in lines] == [entry.id for entry in entries()]


def test_a_part_of_a_name_filters_and_the_names_can_be_asked_for(zerokit: Run) -> None:
    code, out, _ = zerokit("models", "Nemo", "--format", "json")
    (found,) = json.loads(out)["models"]
    assert code == 0
    assert found["num_parameters"] == 12_247_782_400
    for name in found["names"]:
        assert load_model_shape(name, allow_network=False).num_parameters == found["num_parameters"]


def test_a_part_of_no_name_gives_2(zerokit: Run) -> None:
    message = "NAME: no model has 'no-such-model' in its name. Leave it out for all of them"
    assert refused(zerokit, "models", "no-such-model") == f"zerokit: error: {message}\n"

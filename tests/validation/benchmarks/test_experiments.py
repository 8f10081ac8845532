"""The recipes of tests/validation/records/experiments.md, and its tables."""

from __future__ import annotations

import json

import pytest

from tests.validation.benchmarks.experiments import EXPERIMENTS, PAGE, RECIPES, RECORDED, table
from zerokit.recipe.load import load_recipe


def test_each_experiment_has_a_recipe() -> None:
    of_variants = {one.recipe for of in EXPERIMENTS.values() for one in of.variants.values() if one.recipe}
    assert {file.stem for file in RECIPES.glob("*.yaml")} == {*EXPERIMENTS} | of_variants


@pytest.mark.parametrize(("name", "variant"), [(name, one) for name, of in EXPERIMENTS.items() for one in of.variants])
def test_recipes_and_their_variants_can_be_read(name: str, variant: str) -> None:
    experiment = EXPERIMENTS[name]
    one = experiment.variants[variant]
    recipe = RECIPES / f"{one.recipe or name}.yaml"
    plain = load_recipe(recipe, ())
    changed = load_recipe(recipe, (*one.words, *experiment.small, *one.small))
    assert changed.recipe.training["max_steps"] > 0
    assert "max_steps" not in plain.recipe.training


def test_the_page_shows_the_record() -> None:
    rows = json.loads(RECORDED.read_text())["rows"]
    found = {(row["experiment"], row["variant"], row["size"]): row for row in rows}
    assert {(name, variant) for name, variant, _ in found} <= {
        (name, variant) for name, of in EXPERIMENTS.items() for variant in of.variants
    }
    text = PAGE.read_text()
    for name in EXPERIMENTS:
        assert f"<!-- {name} -->\n{table(found, name)}<!-- /{name} -->\n" in text

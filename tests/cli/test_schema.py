import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cli.conftest import refused
from zerokit.config.schema import json_schema
from zerokit.recipe import schema as recipe_schema

Run = Callable[..., tuple[int, str, str]]

COMMITTED = Path(__file__).parents[2] / "docs" / "schema"
RECIPES = sorted((Path(__file__).parents[2] / "zerokit" / "recipe").glob("*.yaml"))


def test_it_prints_the_schema(zerokit: Run) -> None:
    code, out, err = zerokit("schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == json_schema()


def test_it_writes_a_file(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    assert zerokit("schema", "-o", file) == (0, "", "")
    assert json.loads(file.read_text()) == json_schema()
    assert "--force" in refused(zerokit, "schema", "-o", file)


@pytest.mark.parametrize(("options", "name"), [([], "ds_config.schema.json"), (["--recipe"], "recipe.schema.json")])
def test_the_committed_schemas_are_what_the_command_writes(zerokit: Run, options: list[str], name: str) -> None:
    """If this fails, run ``zerokit schema [--recipe] -o docs/schema/NAME --force``."""
    assert zerokit("schema", *options) == (0, (COMMITTED / name).read_text(), "")


def test_recipes_that_come_with_zerokit_fit_their_schema() -> None:
    schema = recipe_schema.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert RECIPES
    for file in RECIPES:
        jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": "x"}, "modle"),
        ({"task": {"seq_len": "long"}}, "'long' is not of type 'integer'"),
        ({"deepspeed": {"zero_optimization": {"stage": 3, "sub_group": 1}}}, "sub_group"),
        ({"deepspeed": {"zero_optimisation": {}}}, "zero_optimisation"),
    ],
)
def test_mistakes_in_a_recipe_do_not_fit_its_schema(change: dict[str, Any], message: str) -> None:
    recipe = {"model": "x", "data": {"train": "y"}}
    validator = jsonschema.Draft202012Validator(recipe_schema.json_schema())
    assert list(validator.iter_errors(recipe)) == []
    errors = list(validator.iter_errors({**recipe, **change}))
    shown = " ".join(part.message for error in errors for part in [error, *(error.context or [])])
    assert message in shown


def test_every_key_of_a_recipe_is_described() -> None:
    schema = recipe_schema.json_schema()
    for name, key in schema["properties"].items():
        assert key.get("description") or "$ref" in key or "allOf" in key, name

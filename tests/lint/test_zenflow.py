from tests.lint.asking import said, zero
from zerokit.recipe import Recipe

CPU = {"offload_optimizer": {"device": "cpu"}}
STEP = {"select_strategy": "step", "select_interval": 8, "update_interval": 4}
SECTION = "zero_optimization.zenflow"


def test_a_recipe_has_the_trainer_make_the_optimizer() -> None:
    recipe = Recipe.model_validate({"model": "org/name", "data": {"train": "x.jsonl"}})
    config = zero(3, zenflow=STEP, **CPU)
    assert said("zenflow-optimizer", config, recipe=recipe) == [(SECTION, "error")]

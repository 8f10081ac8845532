"""A run described in one YAML file: model, data, task, peft, training, deepspeed, generation."""

from zerokit.recipe.load import LoadedRecipe, load_recipe
from zerokit.recipe.model import PYTHON_QUESTIONS, PYTHON_REFERENCE, Recipe

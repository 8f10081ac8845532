"""What can be wrong with a recipe that is seen in moments: before torch is imported, or a launcher speaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.source import check_before_launch, read_model_config
from zerokit.data.files import common_format, given_files
from zerokit.errors import ZerokitError, noted, raise_together
from zerokit.recipe.training_keys import check_without_imports
from zerokit.training.given import named_sources

if TYPE_CHECKING:
    from zerokit.recipe.load import LoadedRecipe


def first_look(loaded: LoadedRecipe) -> None:
    """Check the recipe's keys, that the model it names is there, and its data, if they are local.

    Args:
        loaded: the recipe.

    Raises:
        ZerokitError: keys are not valid, or files are missing or broken; all of them at once.
    """
    looks: list[Callable[[], object]] = [
        partial(check_without_imports, loaded.recipe.training, loaded.origins),
        partial(_look_for_model, loaded),
        *(partial(_look_for_data, *named) for named in named_sources(loaded)),
    ]
    errors: list[ZerokitError] = []
    for look in looks:
        with noted(errors):
            look()
    raise_together(errors)


def _look_for_model(loaded: LoadedRecipe) -> None:
    model = loaded.recipe.model
    if model.path is not None:
        check_before_launch(model.path, where=loaded.where("model", "path"), revision=model.revision)
    elif isinstance(model.from_config, str):
        read_model_config(Path(model.from_config).expanduser(), where=loaded.where("model", "from_config"))


def _look_for_data(source: str | list[str], where: str, split: str) -> None:
    if files := given_files(source, where, split):
        common_format(files, where)

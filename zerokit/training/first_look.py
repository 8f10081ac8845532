"""What can be wrong with a recipe that is seen in moments: before torch is imported, or a launcher speaks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.source import check_before_launch, read_model_config
from zerokit.data.files import common_format, given_files
from zerokit.recipe.training_keys import check_without_imports
from zerokit.training.given import named_sources

if TYPE_CHECKING:
    from zerokit.recipe.load import LoadedRecipe


def first_look(loaded: LoadedRecipe) -> None:
    """Check the recipe's keys, that the model it names is there, and its data, if they are local.

    Args:
        loaded: the recipe.

    Raises:
        ZerokitError: a key is not valid, or a file is missing or broken.
    """
    check_without_imports(loaded)
    model = loaded.recipe.model
    if model.path is not None:
        check_before_launch(model.path, where=loaded.where("model", "path"), revision=model.revision)
    elif isinstance(model.from_config, str):
        read_model_config(Path(model.from_config).expanduser(), where=loaded.where("model", "from_config"))
    for source, where, split in named_sources(loaded):
        if files := given_files(source, where, split):
            common_format(files, where)

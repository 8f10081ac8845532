"""Trackers that a run reports to in addition to its own files: ``training.report_to``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from zerokit.errors import RecipeError, did_you_mean
from zerokit.recipe.load import LoadedRecipe
from zerokit.tables import table_of

_TABLE = table_of(__file__)
_MODULES: dict[str, list[str]] = _TABLE["modules"]
"""What transformers' ``INTEGRATION_TO_CALLBACK`` knows -> what that imports."""
_ALTERNATIVES: dict[str, str] = _TABLE["alternatives"]
"""Module -> another that transformers accepts instead."""
_PACKAGES: dict[str, str] = _TABLE["packages"]
"""Module -> its package, if the names differ."""
_READ_BY: dict[str, list[str]] = _TABLE["read_by"]
"""Key of `training` that only trackers read -> the trackers that read it."""
_OF_TRANSFORMERS = ("all",)
"""All installed trackers: transformers finds them."""
_IN_OUTPUT_DIR: dict[str, str] = _TABLE["in_output_dir"]
"""Tracker -> the file or folder that it writes in the output folder."""


def trackers(loaded: LoadedRecipe) -> tuple[str, ...]:
    """The trackers that ``training.report_to`` names.

    Raises:
        RecipeError: an unknown name, a missing package, or a key of `training` for a tracker that is not
            named.
    """
    asked: Any = loaded.recipe.training.get("report_to")
    names = tuple(asked) if isinstance(asked, list) else (asked,)
    found = tuple(str(name) for name in names if name not in (None, "none"))
    where = loaded.where("training", "report_to")
    for name in found:
        if name in _OF_TRANSFORMERS:
            continue
        if name not in _MODULES:
            raise RecipeError(
                f"'{name}' is nothing that a run reports to", where=where, hint=did_you_mean(name, sorted(_MODULES))
            )
        for module in _MODULES[name]:
            if not any(find_spec(name) for name in (module, _ALTERNATIVES.get(module, module))):
                package = _PACKAGES.get(module, module)
                raise RecipeError(f"{package} is not installed", where=where, hint=f"Run pip install {package}")
    for name, readers in _READ_BY.items():
        if loaded.recipe.training.get(name) is None or {*readers, *_OF_TRANSFORMERS} & {*found}:
            continue
        # An option may leave out the tracker that a key of the recipe is for.
        if loaded.origins.is_later(("training", "report_to"), ("training", name)):
            continue
        raise RecipeError(
            f"{name} has no effect without {' or '.join(readers)}",
            where=loaded.where("training", name),
            hint=f"Add {readers[0]} to training.report_to, or remove it",
        )
    return found


def tracker_files(names: Sequence[str]) -> list[str]:
    """Files and folders with known names that trackers write into the output folder."""
    return [
        written for tracker, written in _IN_OUTPUT_DIR.items() if not {tracker, *_OF_TRANSFORMERS}.isdisjoint(names)
    ]

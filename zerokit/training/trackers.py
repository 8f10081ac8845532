"""Where a run tells its figures beside its own files: ``training.report_to``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from zerokit.errors import RecipeError
from zerokit.extras import require

if TYPE_CHECKING:
    from zerokit.recipe.load import LoadedRecipe

BUILT_IN = ("csv", "png")
"""``metrics.csv``, and the curve of the loss: what zerokit writes itself."""
CURVE_FILE = "loss.png"


def trackers(loaded: LoadedRecipe) -> tuple[str, ...]:
    """What ``training.report_to`` names; nothing of ``none``.

    Raises:
        RecipeError: a package that it needs is not installed.
    """
    asked: Any = loaded.recipe.training.get("report_to")
    names = tuple(asked) if isinstance(asked, list) else (asked,)
    found = tuple(str(name) for name in names if name not in (None, "none"))
    where = loaded.where("training", "report_to")
    if "png" in found:
        require("plot", where=where)
    for name in ("wandb", "tensorboard", "trackio"):
        if name in found and find_spec(name) is None:
            raise RecipeError(
                f"{name} is not installed",
                where=where,
                hint=f"Run pip install {name}; csv needs nothing",
            )
    return found

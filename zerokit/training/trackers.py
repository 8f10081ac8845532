"""Where a run tells its figures beside its own files: ``training.report_to``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
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


def draw_losses(metrics: Path, file: Path) -> None:
    """Draw the curve of the loss, on what is trained on and on held-out data, by step.

    Args:
        metrics: ``metrics.jsonl`` of the run.
        file: the picture.
    """
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, label in (("loss", "training"), ("eval_loss", "held-out")):
        points: Sequence[tuple[int, float]] = [
            (line["step"], line[name]) for line in lines if line.get(name) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 50 else None)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(file, dpi=120)

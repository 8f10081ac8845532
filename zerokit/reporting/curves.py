"""The curves of a run's losses."""

from __future__ import annotations

import json
from pathlib import Path


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
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 50 else None)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(file, dpi=120)

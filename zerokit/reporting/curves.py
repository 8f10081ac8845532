"""Plots the losses of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from zerokit.files import write_file


def draw_losses(metrics: Path, file: Path) -> None:
    """Draw training loss and held-out loss by step.

    If a resumed run repeated steps, the last values are drawn.

    Args:
        metrics: ``metrics.jsonl`` of the run.
        file: the picture.

    Raises:
        OSError: the metrics cannot be read.
        ZerokitError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    lines = _lines(metrics)
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
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120)
    write_file(file, picture.getvalue())


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """Valid lines, without half-written ones and without steps that a resumed run repeated."""
    lines: list[dict[str, Any]] = []
    for text in metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            continue
        if "max_steps" in line:  # a run begins here, or goes on
            lines = [earlier for earlier in lines if earlier["step"] <= line["step"]]
        lines.append(line)
    return lines

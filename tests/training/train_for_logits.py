"""``launch/train.py``; rank 0 also keeps its first held-out batch, with the logits of the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zerokit.cli.main import main
from zerokit.training import run

KEPT = "logits.pt"
"""In the output folder: what was given to the model, and ``logits``."""


def _save_model(trainer: Any, output: Any, group: Any, report: Any) -> list[Path]:
    given = trainer._prepare_inputs(next(iter(trainer.get_eval_dataloader())))
    inputs = {name: given[name] for name in ("input_ids", "attention_mask", "labels")}
    trainer.model_wrapped.eval()
    with torch.no_grad():
        logits = trainer.model_wrapped(**inputs).logits
    if group.ranks.is_main:
        torch.save({**inputs, "logits": logits}, output.path / KEPT)
    files: list[Path] = _its_own(trainer, output, group, report)
    return files


if __name__ == "__main__":
    _its_own = run.save_model
    run.save_model = _save_model
    main("train")

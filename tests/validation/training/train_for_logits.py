"""``launch/train.py``; rank 0 also keeps its first held-out batch, with the logits of the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zerokit.cli.main import main
from zerokit.training import run

KEPT = "logits.pt"
"""In the output folder: what was given to the model, and ``logits``."""


def save_with_logits(trainer: Any, output: Any, group: Any, report: Any) -> list[Path]:
    given = trainer._prepare_inputs(next(iter(trainer.get_eval_dataloader())))
    # Of labels an encoder's decoder makes what it is given.
    names = ("labels",) if trainer.model.config.is_encoder_decoder else ()
    inputs = {name: given[name] for name in ("input_ids", "attention_mask", *names)}
    trainer.model_wrapped.eval()
    with torch.no_grad():
        logits = trainer.model_wrapped(**inputs).logits
    if group.ranks.is_main:
        torch.save({**inputs, "logits": logits}, output.path / KEPT)
    files: list[Path] = _SAVE_MODEL(trainer, output, group, report)
    return files


_SAVE_MODEL = run.publish_model

if __name__ == "__main__":
    run.publish_model = save_with_logits
    main("train")

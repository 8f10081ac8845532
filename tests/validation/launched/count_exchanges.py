"""Trains a recipe and writes the collectives of each step: ``count_exchanges.py RECIPE OUTPUT.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback, trainer

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.training.main import train

KINDS = ("all_gather", "all_gather_into_tensor", "all_reduce", "barrier", "broadcast", "reduce_scatter_tensor")


class Steps(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Of a run, what its ranks have exchanged in each."""

    def __init__(self) -> None:
        self.found: list[list[str]] = [[]]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step has ended."""
        self.found.append([])

    def counted(self, name: str) -> Callable[..., Any]:
        """A collective that is noted."""
        usual = getattr(dist, name)

        @wraps(usual)
        def collective(*args: Any, **kwargs: Any) -> Any:
            self.found[-1].append(name)
            return usual(*args, **kwargs)

        return collective


if __name__ == "__main__":
    steps = Steps()
    for kind in KINDS:
        setattr(dist, kind, steps.counted(kind))
    trainer.DEFAULT_CALLBACKS.append(steps)
    ranks = read_ranks()
    train(RankGroup(ranks), Path(sys.argv[1]), ())
    if ranks.is_main:
        Path(sys.argv[2]).write_text(json.dumps(steps.found))

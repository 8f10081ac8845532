"""Train the cells of `tests.validation.checkpoint.reshard`: losses as JSON beside each checkpoint.

``reshard_cells.py FOLDER begin``: trains each and saves it; ``go-on``: trains each from its start to its end,
and again from the checkpoint that was made for so many ranks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed import comm as dist

from tests.launched.save_checkpoints import begin, train
from tests.validation.checkpoint.reshard import CELLS, ROWS, STEPS


def losses_of(run: dict[str, Any], folder: Path, checkpoint: Path | None = None) -> list[float]:
    """Of all steps, or of those behind a checkpoint."""
    ranks = dist.get_world_size()
    engine = begin(run, folder)
    first = 0
    if checkpoint is not None:
        assert engine.load_checkpoint(str(checkpoint))[0] is not None
        first = engine.global_steps
    return train(engine, range(first, 2 * STEPS), range(ROWS)[dist.get_rank() :: ranks])


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    out, action = Path(sys.argv[1]), sys.argv[2]
    ranks = dist.get_world_size()
    for name, run in CELLS.items():
        folder = out / name
        if action == "begin":
            engine = begin(run, folder)
            train(engine, range(STEPS), range(ROWS)[dist.get_rank() :: ranks])
            engine.save_checkpoint(str(folder))
            continue
        whole = losses_of(run, folder)[STEPS:]
        resumed = losses_of(run, folder, out / f"{name}-{ranks}")
        if dist.get_rank() == 0:
            Path(out, f"{name}-{ranks}.json").write_text(json.dumps([whole, resumed]))

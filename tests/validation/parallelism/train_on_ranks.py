"""``launch/train.py`` on more ranks than this machine has cores; rank 0 writes what its engine was."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from deepspeed import DeepSpeedEngine

from zerokit.cli.main import main
from zerokit.memory import loss_chunks
from zerokit.training import run

ENGINE = "engine.json"
"""In the output folder: the engine's class, its ZeRO stage and the ranks that divide a sequence."""


def save_with_engine(trainer: Any, output: Any, group: Any, report: Any) -> list[Path]:
    engine = trainer.model_wrapped
    found = [type(engine).__name__, engine.zero_optimization_stage(), engine.sequence_parallel_size]
    files: list[Path] = _SAVE_MODEL(trainer, output, group, report)
    if group.ranks.is_main:
        (output.path / ENGINE).write_text(json.dumps(found))
    return files


_SAVE_MODEL = run.publish_model


def kill_in_second_step(backward: Any) -> Any:
    """A backward pass that kills its process the second time, when the other ranks wait in theirs."""
    steps = iter(range(2))

    def stepped(*args: Any, **kwargs: Any) -> Any:
        if next(steps):
            os.kill(os.getpid(), signal.SIGKILL)
        return backward(*args, **kwargs)

    return stepped


if __name__ == "__main__":
    run.publish_model = save_with_engine
    os.cpu_count = lambda: 64
    if os.environ.get("KILL_RANK") == os.environ["RANK"]:
        DeepSpeedEngine.backward = kill_in_second_step(DeepSpeedEngine.backward)
    if "SMALL_CHUNKS" in os.environ:
        loss_chunks.CHUNK_LOGITS = 8 * 320
    main("train")

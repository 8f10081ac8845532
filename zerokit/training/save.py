"""Save the trained model: written beside its place, checked, and then moved file by file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.source import check_weights
from zerokit.errors import CheckpointError, ModelError

if TYPE_CHECKING:
    from transformers import Trainer

    from zerokit.distributed.group import RankGroup

_STAGING = ".saving"


def save_model(trainer: Trainer, output_dir: Path, group: RankGroup) -> list[Path]:
    """Save weights (safetensors), config, generation config and tokenizer into `output_dir`.

    All ranks take part, because under ZeRO-3 each holds a part of the weights. The files are written to
    a folder beside their place, checked, and moved.

    Returns:
        the files, on rank 0; nothing on the others.

    Raises:
        CheckpointError: the saved weights are missing or empty.
    """
    staging = output_dir / _STAGING
    if group.ranks.is_main:
        shutil.rmtree(staging, ignore_errors=True)
    trainer.save_model(str(staging))
    return group.together(lambda: _publish(staging, output_dir) if group.ranks.is_main else [])


def _publish(staging: Path, output_dir: Path) -> list[Path]:
    # The Trainer's pickle of its arguments: nobody should have to load it, run.json says the same.
    (staging / "training_args.bin").unlink(missing_ok=True)
    try:
        check_weights(staging, where=str(staging))
    except ModelError as error:
        raise CheckpointError(error.message, where=error.where, hint=error.hint) from None
    files = []
    for file in sorted(staging.iterdir()):
        target = output_dir / file.name
        if target.is_dir():  # additional_chat_templates, which replace() cannot put in place of another
            shutil.rmtree(target)
        files.append(file.replace(target))
    staging.rmdir()
    # What an earlier model left: shards that the new one does not have, or an adapter, which whoever loads
    # the folder would add to it.
    for old in (*output_dir.glob("model*.safetensors*"), *output_dir.glob("adapter_*")):
        if old not in files:
            old.unlink()
    return files

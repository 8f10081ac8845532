"""Reads all of a checkpoint to see whether a run could go on from it, or a model be made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.archive import read_archive
from zerokit.checkpoint.checksums import SUMS_FILE, check_checksums, read_checksums
from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.elements import ElementReader
from zerokit.checkpoint.soundness import sound_blocks

if TYPE_CHECKING:
    from zerokit.checkpoint.deepspeed_folder import Facts

_TRAINER_STATE = "trainer_state.json"
"""Beside it the Trainer's own part of a checkpoint lies."""


@dataclass(frozen=True)
class Verified:
    """What was looked at, and nothing was wrong with."""

    facts: Facts
    num_files: int
    nbytes: int
    hashes: bool
    """Whether the files had checksums to compare, beside those in each."""
    not_finite: list[str] = field(default_factory=list)
    """Tensors with elements that are infinite or NaN."""


def verify(path: Path) -> Verified:
    """See that a checkpoint is complete, as it was saved, of one step, and loads nothing that may run code.

    Args:
        path: of a step, or of a run, whose newest one is taken.

    Raises:
        CheckpointError: it is not; says the first thing that is wrong.
    """
    checkpoint = read_checkpoint(path)
    step = checkpoint.facts.folder
    read = set(checkpoint.files)
    storages = list(checkpoint.storages)
    for folder in [step, *([step.parent] if (step.parent / _TRAINER_STATE).is_file() else [])]:
        for file in sorted({*folder.glob("*.pt"), *folder.glob("*.pth")} - read):
            storages += read_archive(file).storages
            read.add(file)
    hashed = next((folder for folder in (step, step.parent) if (folder / SUMS_FILE).is_file()), None)
    if hashed is not None:
        check_checksums(hashed, read_checksums(hashed) or {})
    verified = Verified(
        checkpoint.facts, len(read), sum(file.stat().st_size for file in read), hashed is not None
    )
    with ElementReader() as reader:
        for storage in storages:
            reader.check(storage)
        for tensor in checkpoint.tensors().values():
            for _ in sound_blocks(reader, checkpoint, tensor, verified.not_finite):
                pass
        reader.finish()
    return verified

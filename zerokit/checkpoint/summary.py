"""What a checkpoint is, as people and scripts want to know it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerokit.checkpoint.adapter_names import is_adapted
from zerokit.checkpoint.deepspeed_folder import DeepSpeedCheckpoint, read_checkpoint
from zerokit.checkpoint.saved_states import CheckpointInfo, read_info
from zerokit.errors import CheckpointError


@dataclass(frozen=True)
class Summary:
    """What is known of a checkpoint."""

    facts: CheckpointInfo
    nbytes: int
    """Of its files."""
    checkpoint: DeepSpeedCheckpoint | None
    """None if it is not complete."""
    problem: CheckpointError | None
    """Why it is not."""

    @property
    def is_adapter(self) -> bool:
        return self.checkpoint is not None and is_adapted(self.checkpoint.tensors())


def summarize(path: Path) -> Summary:
    """Read what a checkpoint is from the headers of its files.

    Args:
        path: of a step, or of a run, whose newest one is taken.

    Raises:
        CheckpointError: it is none, or rank 0's files are damaged.
    """
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as problem:
        facts = read_info(path)
        return Summary(facts, _nbytes(facts), None, problem)
    return Summary(checkpoint.facts, _nbytes(checkpoint.facts), checkpoint, None)


def _nbytes(facts: CheckpointInfo) -> int:
    return sum(file.stat().st_size for file in facts.folder.rglob("*") if file.is_file())

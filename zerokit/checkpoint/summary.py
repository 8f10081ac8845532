"""Summarizes a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerokit.checkpoint.adapter_names import is_adapted
from zerokit.checkpoint.deepspeed_folder import DeepSpeedCheckpoint, read_checkpoint
from zerokit.checkpoint.saved_states import CheckpointInfo, read_info
from zerokit.errors import CheckpointError


@dataclass(frozen=True)
class Summary:
    facts: CheckpointInfo
    nbytes: int
    """Size of its files."""
    checkpoint: DeepSpeedCheckpoint | None
    """None if it is incomplete."""
    problem: CheckpointError | None
    """Why it is incomplete."""

    @property
    def is_adapter(self) -> bool:
        return self.checkpoint is not None and is_adapted(self.checkpoint.tensors())


def summarize(path: Path) -> Summary:
    """Summarize a checkpoint from the headers of its files.

    Args:
        path: a step, or a run for its newest step.

    Raises:
        CheckpointError: it is no checkpoint, or rank 0's files are damaged.
    """
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as problem:
        facts = read_info(path)
        return Summary(facts, _nbytes(facts), None, problem)
    return Summary(checkpoint.facts, _nbytes(checkpoint.facts), checkpoint, None)


def _nbytes(facts: CheckpointInfo) -> int:
    return sum(file.stat().st_size for file in facts.folder.rglob("*") if file.is_file())

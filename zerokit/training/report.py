"""The files that say what a run did: ``run.json``, in numbers, and the name of its metrics."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zerokit.documents import finite
from zerokit.files import write_file

REPORT_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
CSV_FILE = "metrics.csv"


def git_commit() -> str | None:
    """The commit of the current folder, as ``git describe`` writes it; None outside of a repository.

    The folder's own config may name programs, and it may be an unpacked archive: its hooks and its monitor
    of files do not run. A filter that it asks for, as git-lfs does, is needed to see what differs.
    """
    quiet = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
    words = ["git", *quiet, "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30, env=environment)
    except (OSError, subprocess.SubprocessError):  # no git, or one that waits for a disk
        return None
    return done.stdout.strip() or None


@dataclass(frozen=True)
class RunReport:
    """The figures of a finished run."""

    run_id: str
    """Of the run, also where it was resumed; its checkpoints carry it too."""
    zerokit_version: str
    versions: dict[str, str]
    """Of :data:`zerokit.extras.PACKAGES`, as the run began."""
    git_commit: str | None
    """Of the folder that the run was started in, as it began; with ``-dirty`` where files differed."""
    seed: int
    data_seed: int
    """Of the order of the examples."""
    num_parameters: int
    num_trainable_parameters: int
    zero_stage: int
    world_size: int
    precision: str
    device: str
    num_train_examples: int | None
    """None of streamed data."""
    num_eval_examples: int
    steps: int
    resumed_from_step: int
    """0 where the run was not resumed. Seconds, speed, `train_loss` and peak are of the steps after it."""
    train_seconds: float
    tokens: int
    """Tokens trained on, without padding, over all ranks and all steps."""
    tokens_per_second: float
    """Over all ranks, from the first step (after a resume) to the last, evaluation included."""
    step_seconds: float | None
    """The median, without evaluations and checkpoints; None where nothing was left to train."""
    mfu: float | None
    """In these steps: the share of what the cards could compute (:mod:`zerokit.training.operations`); None
    where that is not known."""
    loss_before: float | None
    """Mean loss per token (or example, where a task has one loss for each) on the held-out data before the
    first step; None without such data."""
    loss_after: float | None
    metrics_before: dict[str, float]
    """Of the task, on the held-out data before the first step, such as ``accuracy``; empty without any."""
    metrics_after: dict[str, float]
    train_loss: float | None
    """None where nothing was left to train."""
    model_states_bytes: int | None
    """Expected on each rank's device, without what is offloaded; None for an optimizer that is not known."""
    expected_peak_bytes: int | None
    """On the fullest rank's GPU, as it was estimated before the first step; None where it was not."""
    peak_memory_bytes: int
    """Measured: the largest peak of any rank, from before the model was built. Allocated on a GPU; on CPU
    the growth of the process, whose libraries count, too."""
    rehearsed: dict[str, float | None] | None
    """What a rehearsal said, where ``--rehearsed`` names it: `peak_bytes`, `step_seconds`, `low_seconds`,
    `high_seconds`."""
    padding: dict[str, float] | None
    """Of the rows trained on, as a share: `share`, and `share_if_padded`, if each document had a row of its
    own; `examples_per_step`, documents of an optimizer step. None where batches are padded as they
    come; of streamed data, of the first buffer."""
    recipe: dict[str, Any]
    ds_config: dict[str, Any]
    files: list[str] = field(default_factory=list)
    """All that belongs to the model, by name."""

    def write(self, output_dir: Path) -> Path:
        """Write ``run.json`` into `output_dir`, whole or not at all."""
        file = output_dir / REPORT_FILE
        text = json.dumps(finite(asdict(self)), indent=2, default=str, allow_nan=False)
        write_file(file, text + "\n")
        return file

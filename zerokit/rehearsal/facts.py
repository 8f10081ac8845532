"""What a rank reports besides arrays: the typed facts of its recording."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from zerokit.rehearsal.report.report import Batches, Evaluation, Part, ReadingTime


class NvmeBytes(Part):
    """Files of DeepSpeed's NVMe offload, and what was moved to and from them."""

    held: int
    written: int
    read: int


class RankTimes(Part):
    """The virtual time of a rank, nanoseconds since its start."""

    step_ends: list[int]
    """When each step was done."""
    step_end_events: list[list[int]] = Field(default_factory=list)
    """The events of the clock at each step's end; the last of them to happen ends the step."""
    meetings: list[tuple[str, ...]] = Field(default_factory=list)
    """The collectives that other ranks take part in, in this rank's order."""
    model_flops: list[float]
    """Floating-point operations that each step needs, without recomputed ones."""
    tokens_per_step: list[int | None] = Field(default_factory=list)
    """Of all data-parallel ranks, padding included; None where batches are not of tokens."""
    reading: ReadingTime | None = None
    host_threads: int | None = None
    """Threads of this rank for CPU work; None: as many as the machine has cores."""


class RankFacts(Part):
    """What one rank reports of its run."""

    rank: int = 0
    versions: dict[str, str] = Field(default_factory=dict)
    """Installed versions by package."""
    hint: str | None = None
    """What to do about the error that ended the script, if that is known."""
    elapsed_seconds: float = 0.0
    ds_config: dict[str, Any] | None = None
    """As DeepSpeed read it; None without an engine."""
    refused_ds_config: dict[str, Any] | None = None
    """The last one that DeepSpeed refused."""
    requested_steps: int | None = None
    """Optimizer steps after which the run ends; None: the script ends by itself."""
    stopped_after_steps: int | None = None
    """None if the script came to its own end."""
    idle_micro_steps: tuple[int, int] | None = None
    """Micro-steps done, of those that an optimizer step takes, if an engine made no optimizer step."""
    expandable_segments: bool = False
    """Whether PYTORCH_CUDA_ALLOC_CONF asks for them."""
    suppressed: list[str] = Field(default_factory=list)
    """Checkpoints, trackers and uploads that were not written."""
    gaps: list[str] = Field(default_factory=list)
    """Operations without a stand-in, including those that the script went on without."""
    nvme: NvmeBytes | None = None
    batches: Batches | None = None
    evaluation: Evaluation | None = None
    times: RankTimes | None = None
    """None if only memory was rehearsed."""

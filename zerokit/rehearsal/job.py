"""What one rank's rehearsal is told: written by the command, read by the worker."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict


Values = Literal["none", "real"]
"""Whether tensors hold values: only in the real runs that rehearsals are checked against."""


class Overrides(TypedDict, total=False):
    """Changes to make to the run without touching its script."""

    ds_config: dict[str, Any]
    """Values by dotted key, merged into whatever config DeepSpeed is given."""
    gradient_checkpointing: bool
    """Turn the model's gradient checkpointing on."""
    micro_batch_divisor: int
    """Divide the micro-batch size by this, and multiply the accumulation steps by it."""


class RehearsalJob(BaseModel):
    """One rank of one rehearsal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    script: str
    """A file, or the name of a module if `module`."""
    module: bool = False
    arguments: list[str] = Field(default_factory=list)
    num_gpus: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)
    rank: int = Field(ge=0)
    steps: int = Field(ge=1)
    """Optimizer steps after which the script is stopped."""
    gpu_memory_bytes: int = Field(gt=0)
    overrides: Overrides = Field(default_factory=Overrides)
    values: Values = "none"
    cwd: str
    report_file: str
    """Where the worker writes the report, as JSON; also what there is of one if the script fails."""
    recording_file: str | None = None
    trace_file: str | None = None
    plot_file: str | None = None
    snapshot_file: str | None = None

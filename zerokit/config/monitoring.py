"""Metrics, profiles and timers: sections such as `tensorboard`, `wandb` and `flops_profiler`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from zerokit.config.base import NonNegative, NonNegativeFloat, NoText, Positive, Reader, Section, Sub, whole


class TensorBoard(Section):
    """Writes metrics for TensorBoard."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = False
    """Write metrics. Needs the package `tensorboard`. Default false."""

    output_path: str = ""
    """Folder to write to. Default empty: the current one."""

    job_name: str = "DeepSpeedJobName"
    """Name of a folder in `output_path`. Default DeepSpeedJobName."""


class CsvMonitor(Section):
    """Writes metrics as CSV."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = False
    """Write metrics. Default false."""

    output_path: str = ""
    """Folder to write to. Default empty: the current one."""

    job_name: str = "DeepSpeedJobName"
    """Name of a folder in `output_path`. Default DeepSpeedJobName."""


class Wandb(Section):
    """Sends metrics to Weights & Biases."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = False
    """Send metrics. Needs the package `wandb`. Default false."""

    project: str = "deepspeed"
    """Project there. Default deepspeed."""

    team: str | None = None
    """Team there. Default none."""

    group: str | None = None
    """Group of runs. Default none."""


class Comet(Section):
    """Sends metrics to Comet. What is absent is read from Comet's own file or environment variables."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = False
    """Send metrics. Needs the package `comet_ml`. Default false."""

    samples_log_interval: Positive = 100
    """Samples between two points. Default 100."""

    project: str | None = None
    """Project there. Default none."""

    workspace: str | None = None
    """Workspace there. Default none."""

    api_key: str | None = None
    """Key of the account; better kept in `COMET_API_KEY` than in a file. Default none."""

    experiment_name: str | None = None
    """Name of the experiment. Default none."""

    experiment_key: str | None = None
    """Key of the experiment, 32 to 50 letters and digits. Default none."""

    online: bool | None = None
    """False keeps the experiment on disk. Default none, true."""

    mode: Literal["get", "create", "get_or_create"] | None = None
    """Continue the experiment of `experiment_key`, start one, or whichever is possible. Default none,
    get_or_create."""


class FlopsProfiler(Section):
    """Counts the operations of each module, and times them, in one step."""

    enabled: NoText = False
    """Profile. Also switches `wall_clock_breakdown` on. Default false."""

    profile_step: NonNegative = 1
    """The step to profile, from 0. Default 1; a later one leaves out the warm-up."""

    module_depth: Annotated[int, Field(ge=-1), BeforeValidator(whole)] = -1
    """Depth of nested modules to print; -1 for all. Default -1."""

    top_modules: NonNegative = 1
    """Modules to print at each depth. Default 1."""

    detailed: bool = True
    """Print every module. Default true."""

    output_file: str | None = None
    """File to write to. Default none: standard output."""

    recompute_fwd_factor: NonNegativeFloat = 0.0
    """Forward passes recomputed during the backward pass, 1 with activation checkpointing. Default 0."""


class CommsLogger(Section):
    """Logs collectives: how many, how large, how fast."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = False
    """Log. Default false."""

    verbose: bool = False
    """Print each call as it is made. Default false."""

    prof_all: bool = True
    """Log every kind. Default true."""

    prof_ops: list[str] = Field(default_factory=list)
    """Kinds to log when `prof_all` is false, such as `all_gather`. Default none."""

    debug: bool = False
    """Add the calling function's name to each. Default false."""


class ThroughputTimer(Section):
    """The timer of samples per second."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = True
    """Measure. Default true."""

    synchronized: bool = True
    """Synchronise the device at each step: more exact, slower. Default true."""


class Timers(Section):
    """Timers."""

    throughput: Sub[ThroughputTimer] = Field(default_factory=ThroughputTimer.defaults)
    """The timer of samples per second."""

"""Where metrics go: the sections `tensorboard`, `wandb`, `comet` and `csv_monitor`."""

from __future__ import annotations

from typing import ClassVar, Literal

from zerokit.config.base import Positive, Reader, Section


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

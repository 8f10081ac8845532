"""What one rank's rehearsal is told: written by the command, read by the worker."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from zerokit.choices import Launcher
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.hardware.prices.figures import figures
from zerokit.hardware.prices.prices import Prices
from zerokit.rehearsal.devices import DEFAULT, VirtualDevice, virtual_device


class Overrides(TypedDict, total=False):
    """Changes to make to the run without touching its script."""

    ds_config: dict[str, Any]
    """Values by dotted key, merged into whatever config DeepSpeed is given."""
    gradient_checkpointing: bool
    """Turn the model's gradient checkpointing on, or off."""
    micro_batch_divisor: int
    """Divide the micro-batch size by this, and multiply the accumulation steps by it."""
    micro_batch_multiplier: int
    """The other way round; where there are fewer accumulation steps, one is left."""


class Clocks(BaseModel):
    """What goes by virtual time, where time is rehearsed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    script: bool = True
    """The clocks that the script reads."""
    data: bool = False
    """Reading data: it takes as long as it does on this machine."""


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
    launcher: Launcher = "torchrun"
    """Whose arguments and variables the script gets."""
    accelerate_config: str | None = None
    """The file that `accelerate launch --config_file` is given; the user's default one if None."""
    accelerate_arguments: list[str] = Field(default_factory=list)
    """What `accelerate launch` is given besides."""
    steps: int = Field(ge=0)
    """Optimizer steps after which the script is stopped; 0 lets it run to its end."""
    scan_seconds: float = Field(default=0.0, ge=0.0)
    """How long to look for the largest batches of the data, which are rehearsed after those steps."""
    device: VirtualDevice = Field(default_factory=lambda: virtual_device(find_gpu(DEFAULT)))
    """The GPU that the script sees."""
    timed_on: Gpu | None = None
    """The card whose speed time is rehearsed with; None: memory alone is."""
    figures: dict[str, Any] | None = None
    """Those behind the prices, where a file changes them (:mod:`zerokit.hardware.hardware_file`)."""
    clocks: Clocks = Field(default_factory=Clocks)
    overrides: Overrides = Field(default_factory=Overrides)
    has: dict[str, str | None] = Field(default_factory=dict)
    """Distributions that the cluster has and this machine does not, and their versions (`--has`)."""
    cwd: str
    exchange_folder: str | None = None
    """Where the ranks of one rehearsal hand each other what they exchange by value."""
    report_file: str
    """Where the worker writes the report, as JSON; also what there is of one if the script fails."""
    recording_file: str | None = None
    trace_file: str | None = None
    plot_file: str | None = None
    timeline_file: str | None = None
    snapshot_file: str | None = None

    @property
    def cluster(self) -> Cluster:
        """What is rehearsed."""
        return Cluster(self.num_gpus, self.gpus_per_node, self.timed_on)

    @property
    def prices(self) -> Prices | None:
        """What everything costs; None if memory alone is rehearsed.

        Raises:
            ZerokitError: the speed of the card is not known.
        """
        return None if self.timed_on is None else Prices(self.cluster, self.figures or figures())

"""The job of one rank: written by the command, read by the worker."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.rehearsal.devices import DEFAULT, VirtualDevice, virtual_device
from zerokit.rehearsal.options import RunOptions


class WorkerExit(IntEnum):
    """The exit codes of a worker."""

    DONE = 0
    """The recording is saved."""
    EXPLAINED = 2
    """A mistake in the input or a gap of the rehearsal, printed in one line on stderr, and saved for Python
    callers (:attr:`RehearsalJob.error_file`) unless the script found it."""
    SCRIPT_FAILED = 3
    """The script raised; its traceback is on stderr as it would be on the cluster."""
    FAILED_WITH_VALUES = 4
    """The script raised, perhaps because of a made-up value."""
    NEEDS_EVERY_RANK = 5
    """The script raised, perhaps because of what a rank held that stands for others; all can be rehearsed."""


class Overrides(TypedDict, total=False):
    """Changes to the run that leave its script as it is."""

    ds_config: dict[str, Any]
    """Values by dotted key, merged into the config that DeepSpeed is given."""
    gradient_checkpointing: bool
    """Turn the model's gradient checkpointing on or off."""
    micro_batch_factor: float
    """Multiply the micro-batch size by this, and divide the accumulation steps by it, both down to one."""


@dataclass(frozen=True)
class RehearsalJob(RunOptions):
    """One rank of one rehearsal."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    _: KW_ONLY
    script: str
    arguments: list[str] = field(default_factory=list)
    accelerate_config: str | None = None
    accelerate_arguments: list[str] = field(default_factory=list)
    rank: int
    steps: int
    """Optimizer steps after which the script is stopped; 0 runs it to its end."""
    device: VirtualDevice = field(default_factory=lambda: virtual_device(find_gpu(DEFAULT)))
    """The GPU that the script sees."""
    timed_on: Gpu | None = None
    """The card whose speed predicts time; None: only memory is rehearsed."""
    figures: dict[str, Any] | None = None
    """Measured figures behind the costs, if a file changes them (:mod:`zerokit.hardware.hardware_file`)."""
    real_time: bool = False
    """Whether the script's clocks show the time of this machine, if time is rehearsed."""
    overrides: Overrides = field(default_factory=Overrides)
    has: dict[str, str | None] = field(default_factory=dict)
    """Distributions that the cluster has and this machine does not, and their versions (`--has`)."""
    cwd: str
    exchange_folder: str | None = None
    """Where the ranks of one rehearsal exchange values; None if this rank is rehearsed alone."""
    recording_file: str
    """Where the worker saves its recording, also if the script fails. Its other files lie next to it."""

    @property
    def error_file(self) -> Path:
        """Where the worker writes message, place and hint of each error that it explains, as JSON."""
        return Path(self.recording_file).with_suffix(".error")

    def to_json(self) -> str:
        """The text that :meth:`from_json` reads."""
        return _adapter().dump_json(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> RehearsalJob:
        """Read what :meth:`to_json` wrote."""
        return _adapter().validate_json(text)

    def of_rank(self, rank: int) -> RehearsalJob:
        """The job of another rank of the same rehearsal."""
        file = Path(self.recording_file).with_name(f"rank-{rank}.npz")
        return replace(self, rank=rank, recording_file=str(file))

    @property
    def cluster(self) -> Cluster:
        """The cluster that is rehearsed."""
        return Cluster(self.num_gpus, self.gpus_per_node, self.timed_on, network_gbit_s=self.network_gbit_s)

    @property
    def costs(self) -> CardCosts | None:
        """What kernels, copies and collectives cost; None if only memory is rehearsed.

        Raises:
            ZerokitError: the speed of the card is not known.
        """
        return None if self.timed_on is None else CardCosts(self.cluster, self.figures or figures())


@cache
def _adapter() -> TypeAdapter[RehearsalJob]:
    return TypeAdapter(RehearsalJob)

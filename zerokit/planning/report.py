"""The answer of ``zerokit plan``: its ``--format json``, and ``plan.json``.

Sizes are bytes, times seconds or hours, prices US dollars. Keys are only ever added.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from zerokit.choices import OffloadDevice

Met = Literal["meets", "likely", "misses", "none"]
"""``meets``: the slow end of the range is within the limit; ``likely``: its middle is; ``none``: no limit."""

Obstacle = Literal["gpu memory", "host memory", "deadline", "budget", "price", "time", "not sold", "network"]
"""Why an option lost."""


class Part(BaseModel):
    """Of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Range(Part):
    """The bounds of a figure, and its most likely value."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> Range:
        """All three multiplied."""
        return Range(low=self.low * factor, mid=self.mid * factor, high=self.high * factor)


class Span(Part):
    """Minimum and maximum need of memory."""

    low: int
    high: int


class Offload(Part):
    """Where states go that are not kept on the GPU."""

    optimizer: OffloadDevice | None = None
    parameters: OffloadDevice | None = None


class Parallel(Part):
    """How the GPUs are divided."""

    data: int
    sequence: int = 1
    tensor: int = 1


class BillItem(Part):
    """One line of the bill."""

    item: str
    """set-up, download, loading, training, evaluation, checkpoints."""
    hours: float
    cost_usd: float


class Meets(Part):
    """Whether a plan is within the limits."""

    deadline: Met
    budget: Met


class Choice(Part):
    """What is chosen: GPUs and settings."""

    gpu: str
    num_gpus: int
    gpus_per_node: int
    network_gbit_s: float | None = None
    """Between nodes; None on one node."""
    is_network_assumed: bool = False
    parallel: Parallel
    zero_stage: int
    offload: Offload
    micro_batch_size: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    chunked_loss: bool
    hpz: bool = False
    tiled_mlp: bool = False
    activation_offloading: bool = False


class Plan(Choice):
    """One way to run the training."""

    settings: str = ""
    """As in `Rejected`."""
    rehearsed: bool
    """Whether memory and time come from a rehearsal; otherwise from formulas."""
    fit: Literal["fits", "tight"]
    device_bytes: Span
    """One GPU."""
    gpu_memory_bytes: int
    host_bytes: Span
    """One node."""
    host_memory_bytes: int | None = None
    """Of one node; None: unknown, and the need is a condition."""
    nvme_bytes: int = 0
    """Of one node."""
    step_seconds: Range
    """Nine of ten real runs should lie within. The ranges of `hours` and `cost_usd` follow from it."""
    run_class: str = ""  # as in `time` of a rehearsal
    narrower_with: list[str] = Field(default_factory=list)
    step_parts: dict[str, float] = Field(default_factory=dict)
    """Seconds of a step by what they are spent on, as ``time.breakdown`` of a rehearsal."""
    memory_parts: dict[str, int] = Field(default_factory=dict)
    """Bytes at the peak of one GPU by category, as ``device.at_peak`` of a rehearsal."""
    hours: Range
    """Everything that is billed."""
    cost_usd: Range
    usd_per_gpu_hour: float
    bill: list[BillItem]
    meets: Meets
    ds_config: dict[str, Any] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)
    """Dotted key of `ds_config` -> the reason for its value."""
    rehearsal: dict[str, Any] | None = None
    """``zerokit rehearse --format json`` of the plan, if it was rehearsed."""


class Considered(Choice):
    """A configuration that was considered: a point of the plot of hours against dollars."""

    fit: Literal["fits", "tight"]
    hours: float
    cost_usd: float
    usd_per_gpu_hour: float
    other_usd: float = 0.0
    """Part of `cost_usd` that does not depend on the price of the GPU."""


class Rejected(Part):
    """An option that lost, and why."""

    gpu: str
    num_gpus: int
    zero_stage: int
    settings: str
    """In words: ``"micro batch 2, checkpointing, optimizer on the host"``."""
    reason: str
    """``"does not fit: needs 94.3 to 101.0 GiB of 79.2 GiB"``, ``"2.1 times slower"``."""
    by: Obstacle


class PriceUsed(Part):
    """The price of a card."""

    gpu: str
    usd_per_gpu_hour: float
    date: str
    source: str
    low: float | None = None
    high: float | None = None
    """Lowest and highest seen, if known."""

    @property
    def row(self) -> list[str]:
        """Of a table: card, price, range, date and source."""
        seen = (f"{usd:.2f}" for usd in (self.low, self.high) if usd is not None)
        return [
            *(self.gpu, f"{self.usd_per_gpu_hour:.2f}", " to ".join(dict.fromkeys(seen))),
            *(self.date, self.source),
        ]


class PlanReport(Part):
    """The whole answer."""

    model: str
    num_parameters: int
    num_trainable_parameters: int
    method: str
    """``full``, ``lora r=16``, ``qlora r=16``."""
    tokens: int
    """Trained in all epochs, padding not counted."""
    steps: int
    seq_len: int
    global_batch_size: int
    deadline_hours: float | None = None
    budget_usd: float | None = None
    goal: Literal["cost", "time"] = "cost"
    verdict: str
    """One sentence or two."""
    meets_limits: bool
    command: str
    """Repeats the plan."""
    plans: list[Plan]
    """Best first; at most five. If nothing meets the limits, the nearest misses."""
    rejected: list[Rejected]
    considered: list[Considered] = Field(default_factory=list)
    assumptions: list[str]
    prices: list[PriceUsed]
    versions: dict[str, str] = Field(default_factory=dict)

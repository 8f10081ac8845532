"""What a plan is made for: the model, how it is trained, on what data, within which limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from zerokit.hardware.cluster import Parallelism
from zerokit.memory import Lora
from zerokit.models import ModelShape
from zerokit.planning.candidates import Offer
from zerokit.planning.workload import Workload, check_in_range

Goal = Literal["cost", "time"]


_MOST = 10**12
"""Beyond any limit, in hours or US dollars."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the user accepts at most. ConfigError if a limit is not positive, or beyond any."""

    deadline_hours: float | None = None
    """All hours that are billed."""
    budget_usd: float | None = None
    has_nvme: bool = False
    """Whether nodes have drives for offload to NVMe."""

    def __post_init__(self) -> None:
        for limit, option in ((self.deadline_hours, "--deadline"), (self.budget_usd, "--budget")):
            check_in_range(limit, where=option, most=_MOST)


@dataclass(frozen=True, kw_only=True)
class PlanJob:
    """A training run to plan."""

    model: ModelShape
    model_name: str
    """As the user wrote it: a name, a Hub id, a folder."""
    workload: Workload
    offers: tuple[Offer, ...]
    """Among which the plan chooses."""
    lora: Lora | None = None
    """None: all parameters are trained."""
    load_in_4bit: bool = False
    """QLoRA; with `lora` only."""
    parallelism: Parallelism | None = None
    """What the user fixes; None: the plan chooses."""
    limits: Limits = Limits()
    goal: Goal = "cost"
    setup_hours: float = 0.75
    """Billed before the run: starting machines, installing."""
    num_evaluations: int = 0
    """During the training and after it."""
    num_checkpoints: int = 1
    """Written during the training and after it."""
    hardware: Path | None = None
    """A file of ``--hardware``: measured figures of a card."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The user's recipe, which the plan's recipe continues; empty without one."""
    data_files: tuple[str, ...] = ()
    """Of ``--data``."""

    @property
    def method(self) -> str:
        """``full``, ``lora r=16``, ``qlora r=16``."""
        if self.lora is None:
            return "full"
        return f"{'qlora' if self.load_in_4bit else 'lora'} r={self.lora.rank}"

"""Hours and cost of a plan, from rented to finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zerokit.estimation import Question, Runs
from zerokit.hardware.cluster import Cluster
from zerokit.memory.layout import layout_of
from zerokit.planning.candidates import Offer
from zerokit.planning.job import PlanJob
from zerokit.planning.report import BillItem, Range
from zerokit.step_time import StepTime
from zerokit.units import format_bytes, quantity

DOWNLOAD_RATE = 200e6
"""Bytes per second of each node from the Hub: assumed."""
READ_RATE = 1e9
"""Bytes per second of each node from its disk: assumed."""
WRITE_RATE = 500e6
"""Bytes per second of each node to its disk: assumed, a network drive of a cloud."""
HELD_OUT = 0.05
"""Share of the sequences that each evaluation reads: `zerokit train`'s default (`data.eval_fraction`)."""
_STATES = 2 + 12
"""Bytes of a checkpoint per trained parameter: 16-bit weights, fp32 master weights, two moments of Adam."""
FORWARD_SHARE = 1 / 3
"""Of a training step, the forward pass that an evaluation is: 2 of 6 operations per weight."""


@dataclass(frozen=True)
class Bill:
    """What is paid for a training run on an offer. Whole instances: every GPU of the offer, all the time."""

    job: PlanJob
    offer: Offer
    time: StepTime
    num_trainable: int
    """Of :func:`num_trainable`."""

    @cached_property
    def items(self) -> list[BillItem]:
        """The lines, with the most likely hours."""
        lines = self._lines(self.time.seconds)
        return [BillItem(item=item, hours=hours, cost_usd=hours * self.usd_per_hour) for item, hours in lines]

    @property
    def usd_per_hour(self) -> float:
        """Of all GPUs."""
        return self.offer.usd_per_gpu_hour * self.offer.num_gpus

    @cached_property
    def hours(self) -> Range:
        """Of everything; only the training and its evaluations have a range."""
        low, mid, high = (
            sum(hours for _, hours in self._lines(seconds))
            for seconds in (self.time.low_seconds, self.time.seconds, self.time.high_seconds)
        )
        return Range(low=low, mid=mid, high=high)

    @cached_property
    def cost(self) -> Range:
        """US dollars."""
        return self.hours.times(self.usd_per_hour)

    def _lines(self, step_seconds: float) -> Iterator[tuple[str, float]]:
        """Items and their hours."""
        weights, states = _weight_bytes(self.job), _STATES * self.num_trainable
        steps, workload = self.job.workload.steps, self.job.workload
        yield "set-up", self.job.setup_hours
        if weights:
            yield "download", weights / DOWNLOAD_RATE / 3600
            yield "loading", weights / READ_RATE / 3600
        if self.job.num_checkpoints:
            seconds = states / (WRITE_RATE * self.offer.num_nodes)
            yield "checkpoints", self.job.num_checkpoints * seconds / 3600
        yield "training", steps * step_seconds / 3600
        if self.job.num_evaluations:
            held_out = HELD_OUT * workload.num_sequences / workload.global_batch_size
            yield "evaluation", self.job.num_evaluations * held_out * FORWARD_SHARE * step_seconds / 3600


def bill_assumptions(job: PlanJob, num_trainable: int) -> Iterator[str]:
    """What the bill assumes, one sentence each."""
    yield f"Starting machines and installing takes {60 * job.setup_hours:g} min; --setup changes it."
    weights, states = format_bytes(_weight_bytes(job)), format_bytes(_STATES * num_trainable)
    rates = f"at {DOWNLOAD_RATE / 1e6:g} MB/s, and loads them at {READ_RATE / 1e9:g} GB/s"
    if _weight_bytes(job):
        yield f"Each node downloads {weights} of weights {rates}."
    if job.num_checkpoints:
        written = f"{quantity(job.num_checkpoints, 'checkpoint')} of {states}"
        yield f"The run writes {written} at {WRITE_RATE / 1e6:g} MB/s per node; save_steps of the recipe changes it."
    if job.num_evaluations:
        times = quantity(job.num_evaluations, "time")
        yield f"{HELD_OUT:.0%} of the data are evaluated {times}, a third of a training step per batch."


def _weight_bytes(job: PlanJob) -> int:
    """To download and load: none for a model that is made from its config."""
    from_config = "from_config" in job.recipe.get("model", {}) or Path(job.model_name).is_file()
    return 0 if from_config else 2 * job.model.num_parameters


def num_trainable(job: PlanJob) -> int:
    """Parameters that are trained, those of adapters included. ZerokitError if the adapter does not suit the model."""
    if job.lora is None:
        return job.model.num_trainable_parameters
    question = Question(model=job.model, cluster=Cluster(1), zero_stage=0, lora=job.lora)
    return layout_of(Runs().training_run(question)).num_trainable

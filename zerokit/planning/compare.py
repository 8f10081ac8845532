"""``zerokit plan --compare``: the figures of a finished run beside those of the plan it was planned by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from zerokit.documents import read_bytes
from zerokit.errors import ConfigError, DocumentError, printable, visible
from zerokit.planning.report import Part, Plan, PlanReport, Range

_MOST_BYTES = 64 << 20
_COMPARED = (
    *("num_gpus", "zero_stage", "sequence", "tensor", "micro_batch_size", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "chunked_loss", "tiled_mlp", "activation_offloading", "precision"),
)
"""Settings, the most important first."""
_SAME_MODEL = 0.05
"""Difference of the numbers of parameters that adapters and a resized vocabulary explain."""
_T = TypeVar("_T", bound=BaseModel)


class MeasuredRun(BaseModel):
    """The part of a ``run.json`` that is compared."""

    world_size: int
    zero_stage: int
    num_parameters: int
    steps: int
    resumed_from_step: int = 0
    train_seconds: float
    """Of the steps after `resumed_from_step`."""
    step_seconds: float | None
    peak_memory_bytes: int
    device: str
    precision: str
    recipe: dict[str, Any] = Field(default_factory=dict)


class Figure(Part):
    """One figure, predicted and measured."""

    figure: str
    """gpu_memory_bytes, step_seconds, training_hours, training_cost_usd."""
    predicted: Range
    measured: float
    is_within: bool
    """Whether the measured figure is within the predicted range."""
    error: float
    """Of the prediction, as a share of the measured figure."""


class Comparison(Part):
    """A plan and its run."""

    plan: int
    """Which plan of the file is compared, from 1."""
    gpu: str
    num_gpus: int
    figures: list[Figure]
    differences: list[str]
    """Between the plan and the run: ``"zero_stage: planned 2, run with 3"``."""


def compare(run_file: Path, plan_file: Path) -> Comparison:
    """Compare a ``run.json`` with the most similar plan of a ``plan.json``.

    Raises:
        ConfigError: a file is of another kind, the plan is empty, or the run has trained no step.
    """
    run = _read(run_file, MeasuredRun, "run.json", "zerokit train")
    report = _read(plan_file, PlanReport, "plan.json", "zerokit plan -o")
    if not report.plans:
        raise ConfigError("has no plan", where=plan_file, hint="Name the plan.json of the run")
    if run.step_seconds is None or run.steps <= run.resumed_from_step:
        raise ConfigError("has no trained step", where=run_file, hint="Name the run.json of a run")
    if abs(run.num_parameters - report.num_parameters) > _SAME_MODEL * report.num_parameters:
        raise ConfigError(
            f"this run has {run.num_parameters:,} parameters, and the plan is of {visible(report.model)} with "
            f"{report.num_parameters:,}",
            where=run_file,
            hint="Name the plan.json of this run",
        )
    place, plan = min(enumerate(report.plans, 1), key=lambda one: (len(list(_different(one[1], run))), one[0]))
    differences = list(_different(plan, run))
    if run.steps != report.steps:
        differences.append(f"steps: planned {report.steps}, run with {run.steps}; hours are those of the run")
    return Comparison(
        plan=place,
        gpu=plan.gpu,
        num_gpus=plan.num_gpus,
        figures=list(_figures(plan, run, run.step_seconds)),
        differences=differences,
    )


def _figures(plan: Plan, run: MeasuredRun, step_seconds: float) -> Iterator[Figure]:
    hours = (run.steps - run.resumed_from_step) / 3600
    usd_per_hour = plan.usd_per_gpu_hour * plan.num_gpus
    if not run.device.startswith("cpu"):
        allocated = sum(plan.memory_parts.values()) or plan.device_bytes.low
        device = Range(low=allocated, mid=allocated, high=plan.device_bytes.high)
        yield _figure("gpu_memory_bytes", device, run.peak_memory_bytes)
    yield _figure("step_seconds", plan.step_seconds, step_seconds)
    training = plan.step_seconds.times(hours)
    yield _figure("training_hours", training, run.train_seconds / 3600)
    if usd_per_hour:
        cost = run.train_seconds / 3600 * usd_per_hour
        yield _figure("training_cost_usd", training.times(usd_per_hour), cost)


def _figure(name: str, predicted: Range, measured: float) -> Figure:
    within = predicted.low <= measured <= predicted.high
    error = predicted.mid / measured - 1 if measured else 0.0
    return Figure(figure=name, predicted=predicted, measured=measured, is_within=within, error=error)


def _different(plan: Plan, run: MeasuredRun) -> Iterator[str]:
    """Settings of the run that are not those of the plan, the most important first."""
    training: dict[str, Any] = run.recipe.get("training", {})
    used = training | run.recipe.get("task", {}) | {"num_gpus": run.world_size, "zero_stage": run.zero_stage}
    used |= {"micro_batch_size": training.get("per_device_train_batch_size"), "precision": run.precision}
    used |= {"sequence": 1, "tensor": 1} | run.recipe.get("parallel", {})
    planned = {**dict(plan), **dict(plan.parallel), "precision": "fp16" if "fp16" in plan.ds_config else "bf16"}
    for name in _COMPARED:
        if used.get(name) not in (None, planned[name]):
            yield f"{name}: planned {planned[name]}, run with {used[name]}"
    if run.device.startswith("cpu"):
        yield f"gpu: planned {plan.gpu}, run on the CPU, whose memory is not compared"


def _read(file: Path, kind: type[_T], name: str, command: str) -> _T:
    where = printable(file)
    try:
        return kind.model_validate_json(read_bytes(file, max_bytes=_MOST_BYTES))
    except (DocumentError, ValidationError) as error:
        message = error.message if isinstance(error, DocumentError) else f"is no {name}"
        raise ConfigError(message, where=where, hint=f"Name the {name} that {command} writes") from error

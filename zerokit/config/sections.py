"""Sections of a ds_config without code of their own: classes made of the rows of `sections.json`.

Import them by their names, such as `ExpertParallel` or `Compile`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ValidationError, model_validator
from pydantic_core import InitErrorDetails

from zerokit.config.base import Section, SwitchedOnByContent
from zerokit.config.model_table import ModelTable


def _require(section: Section, *keys: str, inside: str | None = None) -> None:
    """Refuse a section without keys that DeepSpeed looks up without a default.

    Args:
        section: that which must have them.
        keys: their names.
        inside: the key of the section, if a section above is being validated.
    """
    missing = [key for key in keys if key not in section.model_fields_set]
    if missing:
        above = (inside,) if inside else ()
        details = [InitErrorDetails(type="missing", loc=(*above, key), input=None) for key in missing]
        raise ValidationError.from_exception_data(type(section).__name__, details)


class Switched(Section):
    """A section that needs some of its keys once it is enabled."""

    needed_when_enabled: ClassVar[tuple[str, ...]]

    enabled: bool = False

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.enabled:
            _require(self, *self.needed_when_enabled)
        return self


class ChecksSchedule(Section):
    """A measure of difficulty, which needs the schedule of its type."""

    @model_validator(mode="after")
    def _has_its_schedule(self) -> Self:
        needed = {
            "fixed_linear": ("total_curriculum_step", "difficulty_step"),
            "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
            "fixed_discrete": ("difficulty", "max_step"),
        }
        schedule: Any = getattr(self, "schedule_config")  # noqa: B009
        keys = needed.get(getattr(self, "schedule_type"), ())  # noqa: B009
        if keys:
            _require(self, "schedule_config")
        if schedule is not None:
            _require(schedule, *keys, inside="schedule_config")
        return self


_TABLE = ModelTable(
    Path(__file__).with_suffix(".json"), __name__, Section, SwitchedOnByContent, Switched, ChecksSchedule
)


if TYPE_CHECKING:

    class _Row(Section):
        def __getattr__(self, name: str) -> Any: ...

    ActivationCheckpointing = _Row
    Aio = _Row
    Autotuning = _Row
    BF16 = _Row
    Checkpoint = _Row
    Comet = _Row
    CommsLogger = _Row
    Compile = _Row
    CsvMonitor = _Row
    DataEfficiency = _Row
    DataStates = _Row
    DataTypes = _Row
    ExpertParallel = _Row
    FP16 = _Row
    FlopsProfiler = _Row
    HybridEngine = _Row
    LeafModule = _Row
    OffloadOptimizer = _Row
    OffloadParam = _Row
    Pipeline = _Row
    TensorBoard = _Row
    TensorParallel = _Row
    Timers = _Row
    TorchAutocast = _Row
    Wandb = _Row
    WeightQuantization = _Row
    ZenFlow = _Row


def __getattr__(name: str) -> Any:
    if name not in _TABLE.rows:
        raise AttributeError(name)
    return _TABLE.model(name)

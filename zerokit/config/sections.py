"""Sections of a ds_config without code of their own: classes made of the rows of `sections.json`.

Import them by their names, such as `ExpertParallel` or `Compile`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from zerokit.config.base import ZERO, Section, SwitchedOnByContent
from zerokit.config.model_table import ModelTable
from zerokit.config.optimizer import Optimizer
from zerokit.config.scheduler import Scheduler


def _require(section: Section, *keys: str, inside: str | None = None) -> None:
    """Refuse a section without keys that DeepSpeed looks up without a default."""
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


class Zero(Section):
    """The section `zero_optimization`."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def optimizer_offload(self) -> OffloadOptimizer | None:
        """`offload_optimizer` as DeepSpeed reads it: the deprecated `cpu_offload` is its device `cpu`."""
        section: OffloadOptimizer | None = self.offload_optimizer
        return _TABLE.model("OffloadOptimizer")(device="cpu") if self.cpu_offload else section

    @property
    def param_offload(self) -> OffloadParam | None:
        """`offload_param`, in the same way."""
        section: OffloadParam | None = self.offload_param
        return _TABLE.model("OffloadParam")(device="cpu") if self.cpu_offload_param else section

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """As for every section. DeepSpeed refuses a deprecated key beside the one that replaced it."""
        result = super().dump(all=all)
        old, new = "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"
        if old in self.model_fields_set and new not in self.model_fields_set:
            result.pop(new, None)
        return result


class Root(Section):
    """The whole of a ds_config."""

    model_config = ConfigDict(title="DeepSpeed configuration")

    @field_validator(ZERO, mode="before", check_fields=False)
    @classmethod
    def _stage_of_switch(cls, value: Any) -> Any:
        # The oldest form of the section: `true` was stage 1.
        return {"stage": int(value)} if isinstance(value, bool) else value


_TABLE = ModelTable(
    Path(__file__).with_suffix(".json"),
    __name__,
    *(Section, SwitchedOnByContent, Switched, ChecksSchedule, Zero, Root, Optimizer, Scheduler),
)


if TYPE_CHECKING:  # those that annotations name

    class _Row(Section):
        def __getattr__(self, name: str) -> Any: ...

    Aio = _Row
    Compile = _Row
    DeepSpeedConfig = _Row
    ExpertParallel = _Row
    LeafModule = _Row
    OffloadOptimizer = _Row
    OffloadParam = _Row
    ZenFlow = _Row
    ZeroOptimization = Zero


def __getattr__(name: str) -> Any:
    if name not in _TABLE.rows:
        raise AttributeError(name)
    return _TABLE.model(name)

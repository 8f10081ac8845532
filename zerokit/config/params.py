"""`optimizer.params` and `scheduler.params`: the arguments of each class's constructor, as models.

The classes are rows of `params.json`, with the `types` that name them. DeepSpeed hands the keys to the
constructor as keyword arguments (`_configure_basic_optimizer` in `deepspeed/runtime/engine.py`), so that an
unknown one stops the run when it starts. Ranges of PyTorch's classes are those that the constructors of
PyTorch 2.13 check.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from zerokit.config.base import Reader, Section
from zerokit.config.conditions import NOT_OFFLOADED, OFFLOADED, Acts
from zerokit.config.model_table import ModelTable
from zerokit.errors import did_you_mean, nearest


class Params(Section):
    """Arguments of a constructor."""

    read_by: ClassVar[Reader] = "call"

    def get(self, name: str) -> Any:
        """The argument of that name, the constructor's default if it is not set; None if there is none."""
        return getattr(self, name, None) if name in type(self).model_fields else None


class OptimizerParams(Params):
    """Arguments of an optimizer's constructor."""

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """As for every section, without the defaults of what one of the two classes behind a type refuses."""
        result = super().dump(all=all)
        refused = offload_only(type(self), offloaded=True) | offload_only(type(self), offloaded=False)
        for name in refused - self.model_fields_set:
            result.pop(name, None)
        return result


class SchedulerParams(Params):
    """Arguments of a schedule's constructor."""


class LookedUp(OptimizerParams):
    """Arguments that DeepSpeed looks up by their names."""

    read_by: ClassVar[Reader] = "lookup"


class ChecksNesterov(OptimizerParams):
    """Arguments of `torch.optim.SGD`."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.get("nesterov") and (self.get("momentum") <= 0 or self.get("dampening") != 0):
            raise PydanticCustomError(
                "nesterov",
                "'nesterov' needs a 'momentum' above 0 and no 'dampening'",
                {"hint": "Give a 'momentum', or remove 'nesterov'"},
            )
        return self


class ChecksSteps(SchedulerParams):
    """Arguments of `OneCycleLR`."""

    @model_validator(mode="after")
    def _needs_steps(self) -> Self:
        if self.get("total_steps") is None and None in (self.get("epochs"), self.get("steps_per_epoch")):
            raise PydanticCustomError(
                "steps",
                "'OneCycleLR' needs 'total_steps', or 'epochs' and 'steps_per_epoch'",
                {"hint": "Add 'total_steps'"},
            )
        return self


class RefusesAll(SchedulerParams):
    """Arguments that are Python functions or objects."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        raise PydanticCustomError(
            "function",
            "this scheduler takes Python functions or objects, which a file cannot hold",
            {"hint": "Use one of DeepSpeed's schedules, or build the schedule in the script"},
        )


_TABLE = ModelTable(
    Path(__file__).with_suffix(".json"),
    __name__,
    *(OptimizerParams, SchedulerParams, LookedUp, ChecksNesterov, ChecksSteps, RefusesAll),
)
params_class = _TABLE.model
"""The model of the class of that name in `params.json`."""


def unknown_name(kind: str, name: str, known: Sequence[str], own: Sequence[str]) -> PydanticCustomError:
    """The error for a `type` that no library has.

    Args:
        kind: with its article.
        own: DeepSpeed's names, to list where none of `known` is similar.
    """
    same = next((choice for choice in known if choice.lower() == name.lower()), None)
    close = same or nearest(name, known)
    context = {"name": name, "hint": did_you_mean(name, [close] if close else own)}
    context |= {"meant": same} if same else {}
    return PydanticCustomError("name", f"neither DeepSpeed nor PyTorch has {kind} '{{name}}'", context)


@cache
def params_of(type_: str) -> type[Any]:
    """The model of the arguments of the optimizer or schedule that has this exact `type`."""
    return params_class(next(name for name, row in _TABLE.rows.items() if type_ in row.get("types", ())))


@cache
def offload_only(params: type[Params], *, offloaded: bool) -> frozenset[str]:
    """The keys that the constructor takes only if the optimizer is offloaded, or only if it is not."""
    when = OFFLOADED if offloaded else NOT_OFFLOADED
    return frozenset(
        name
        for name, field in params.model_fields.items()
        if any(isinstance(item, Acts) and item.when == when for item in field.metadata)
    )

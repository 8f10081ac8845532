"""`optimizer.params` and `scheduler.params`: the arguments of each class's constructor, as models.

The classes are rows of `params.json`, with the `types` that name them. DeepSpeed hands the keys to the
constructor as keyword arguments (`_configure_basic_optimizer` in `deepspeed/runtime/engine.py`), so that an
unknown one stops the run when it starts. Ranges of PyTorch's classes are those that the constructors of
PyTorch 2.13 check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from zerokit.config.base import NOT_NULL, OneOrMore, OrAuto, Reader, Section, whole
from zerokit.config.conditions import DECAY_STEPS, DECOUPLED_ANYWAY, NOT_OFFLOADED, OFFLOADED, Acts


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


_BASES: Mapping[str, type[Params]] = {
    base.__name__: base
    for base in (OptimizerParams, SchedulerParams, LookedUp, ChecksNesterov, ChecksSteps, RefusesAll)
}
_TYPES: Mapping[str, Any] = {
    "number": float,
    "switch": bool,
    "whole": int,  # 1e3 is one
    "integer": int,  # 1e3 is none
    "null": None,
}
_CONDITIONS = {
    "offloaded": OFFLOADED,
    "not offloaded": NOT_OFFLOADED,
    "decoupled anyway": DECOUPLED_ANYWAY,
    "decay steps": DECAY_STEPS,
}
_ANNOTATED: Any = Annotated
_ONE_OR_MORE: Any = OneOrMore
_OR_AUTO: Any = OrAuto


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    return cast(
        "Mapping[str, Mapping[str, Any]]",
        json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")),
    )


@cache
def params_of(type_: str) -> type[Any]:
    """The model of the arguments of the optimizer or schedule that has this exact `type`."""
    return params_class(next(name for name, row in _rows().items() if type_ in row.get("types", ())))


@cache
def params_class(name: str) -> type[Any]:
    """The model of the class `name` of `params.json`."""
    row = _rows()[name]
    bases = tuple(_BASES.get(base) or params_class(base) for base in row["bases"])
    fields: dict[str, Any] = {}
    for key, spec in row.get("keys", {}).items():
        inherited = (base.model_fields[key].description for base in bases if key in base.model_fields)
        text = spec.get("text") or next(inherited)
        fields[key] = (_type(spec), Field(default=spec.get("default", ...), description=text))
    return create_model(name, __base__=bases, __module__=__name__, __doc__=row["text"], **fields)


def _type(spec: Mapping[str, Any]) -> Any:
    """The annotation of an argument.

    Args:
        spec: `type` or `choices`; bounds; whether it is a list, or a value for each group of parameters;
            whether "auto" and null are values; where it acts.
    """
    choices = spec.get("choices")
    kind: Any = Literal[tuple(choices)] if choices is not None else _TYPES[spec["type"]]
    bounds = {name: spec[name] for name in ("ge", "gt", "le", "lt") if name in spec}
    if bounds:
        kind = Annotated[kind, Field(**bounds)]
    if spec.get("type") == "whole":
        kind = Annotated[kind, BeforeValidator(whole)]
    if "items" in spec:
        item = kind | None if spec.get("null_items") else kind
        kind = list.__class_getitem__(item)
        if spec["items"] is not None:
            kind = Annotated[kind, Field(min_length=spec["items"], max_length=spec["items"])]
    if spec.get("groups"):
        kind = _ONE_OR_MORE[kind]
    if spec.get("auto"):
        kind = _OR_AUTO[kind]
    if spec.get("null"):
        kind = kind | None
    marks: list[Any] = [NOT_NULL] if spec.get("not_null") else []
    if "when" in spec or "since" in spec:
        when = _CONDITIONS[spec["when"]] if "when" in spec else None
        marks.append(Acts(when=when, since=spec.get("since")))
    return _ANNOTATED[(kind, *marks)] if marks else kind


@cache
def offload_only(params: type[Params], *, offloaded: bool) -> frozenset[str]:
    """The keys that the constructor takes only if the optimizer is offloaded, or only if it is not."""
    when = OFFLOADED if offloaded else NOT_OFFLOADED
    return frozenset(
        name
        for name, field in params.model_fields.items()
        if any(isinstance(item, Acts) and item.when == when for item in field.metadata)
    )

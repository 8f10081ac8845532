"""Models of sections made from rows of JSON: a row for each section, with its keys."""

import json
import re
import types
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from zerokit.config import conditions
from zerokit.config.base import (
    AUTO,
    BYTES,
    DEPRECATED,
    LOWER,
    NOT_NULL,
    OneOrMore,
    OrAuto,
    OrSwitch,
    Positive,
    Section,
    Sub,
    Tested,
    two_names,
    whole,
)
from zerokit.config.conditions import Acts
from zerokit.config.dtypes import DTYPES


def _names_as_list(value: object) -> object:
    return [value] if isinstance(value, str) and value != AUTO else value


def _stage(value: object) -> object:
    if isinstance(value, bool):  # true equals 1, so a Literal would take it
        raise PydanticCustomError("literal_error", "a stage is a number")
    return whole(value)


def _class_name(text: str) -> str:
    if "." not in text:
        given = {"text": repr(text), "hint": f"Write the full name, such as torch.nn.{text}"}
        raise PydanticCustomError("class_name", "{text} has no module, from which DeepSpeed imports the class", given)
    return text


def _regular_expression(text: str) -> str:
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        given = {"text": repr(text), "why": str(error), "hint": "Correct the pattern"}
        raise PydanticCustomError("regular_expression", "{text} is no regular expression: {why}", given) from None
    return text


_TYPES: Mapping[str, Any] = {
    "text": str,
    "class name": Annotated[str, AfterValidator(_class_name), Field(json_schema_extra={"pattern": "^.*[.].*$"})],
    "regular expression": Annotated[
        str, AfterValidator(_regular_expression), Field(json_schema_extra={"format": "regex"})
    ],
    "number": float,
    "switch": bool,
    "whole": int,  # 1e3 is one
    "integer": int,  # 1e3 is none
    "dtype": Literal[tuple(DTYPES)],
    "names": Annotated[list[str], BeforeValidator(_names_as_list)],
    "dimensions": Annotated[int, Field(ge=-1)] | list[Positive],
    "stage": Annotated[Literal[0, 1, 2, 3], BeforeValidator(_stage)],
    "any": Any,
    "null": None,
}
_BOUNDS = ("ge", "gt", "le", "lt", "pattern", "min_length")
_VARIABLES = frozenset({"acts_without_switch", "needed_when_enabled", "read_by", "switch"})
_ANNOTATED: Any = Annotated
_ONE_OR_MORE: Any = OneOrMore
_OR_AUTO: Any = OrAuto
_SUB: Any = Sub
_OR_SWITCH: Any = OrSwitch


class ModelTable:
    """The models of a JSON file.

    A row has the section's `text`, its `keys`, class variables of `Section`, and `bases`: other rows, or
    classes with checks that rows cannot express.

    Args:
        bases: classes that rows name as their bases; the first is that of rows that name none.
    """

    def __init__(self, file: Path, module: str, *bases: type[Section]) -> None:
        self._file = file
        self._base = bases[0].__name__
        self._module = module
        self._models: dict[str, type[Any]] = {base.__name__: base for base in bases}

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Class name -> row."""
        rows: Mapping[str, Mapping[str, Any]] = json.loads(self._file.read_text(encoding="utf-8"))
        return rows

    def model(self, name: str) -> type[Any]:
        """The model of that name, made when it is first needed.

        Raises:
            KeyError: there is no such row.
            ValueError: a key has no text.
        """
        if name not in self._models:
            self._models[name] = self._build(name, self.rows[name])
        return self._models[name]

    def _build(self, name: str, row: Mapping[str, Any]) -> type[Any]:
        keys: Mapping[str, Mapping[str, Any]] = row.get("keys", {})
        bases: tuple[type[Section], ...] = tuple(map(self.model, row.get("bases", [self._base])))
        # As pydantic's create_model, which takes no class variables.
        namespace = {
            "__module__": self._module,
            "__doc__": row["text"],
            "__annotations__": {key: self._type(spec) for key, spec in keys.items()},
            **{key: self._field(name, key, spec, bases) for key, spec in keys.items()},
            **{variable: row[variable] for variable in row.keys() & _VARIABLES},
        }
        return types.new_class(name, bases, exec_body=lambda body: body.update(namespace))

    def _field(self, name: str, key: str, spec: Mapping[str, Any], bases: tuple[type[Section], ...]) -> Any:
        """Default (an absent section has its own), second name, and the text, which may be inherited."""
        inherited = (base.model_fields[key].description for base in bases if key in base.model_fields)
        text = spec.get("text") or next(inherited, None)
        if text is None:
            raise ValueError(f"{name}.{key} has no text")
        details: dict[str, Any] = {"description": text}
        if "second_name" in spec:
            details["validation_alias"] = two_names(key, spec["second_name"])
        if spec.get("deprecated"):
            details["json_schema_extra"] = DEPRECATED
        if "section" in spec and "default" not in spec and not spec.get("needed"):
            return Field(default_factory=self.model(spec["section"]).defaults, **details)
        return Field(default=spec.get("default", ...), **details)

    def _type(self, spec: Mapping[str, Any]) -> Any:
        """The annotation of a key.

        Args:
            spec: `type`, `choices` or `section` (`or_switch`: or a boolean); bounds; whether it is a list
                (`items`), a mapping, or a value for each group of parameters; whether "auto" and null are
                values; what DeepSpeed tests (:class:`Tested`); in which `stages`, under which condition
                (`when`, a constant of `conditions.py`), and `since` which release it acts.
        """
        kind = self._value(spec)
        if "items" in spec:
            kind = list.__class_getitem__(kind | None if spec.get("null_items") else kind)
            if spec["items"] is not None:
                kind = Annotated[kind, Field(min_length=spec["items"], max_length=spec["items"])]
        if spec.get("mapping"):
            kind = dict.__class_getitem__((str, kind))
        if spec.get("groups"):
            kind = _ONE_OR_MORE[kind]
        if spec.get("auto"):
            kind = _OR_AUTO[kind]
        if spec.get("null") or spec.get("not_null"):
            kind = kind | None
        marks = list(_marks(spec))
        return _ANNOTATED[(kind, *marks)] if marks else kind

    def _value(self, spec: Mapping[str, Any]) -> Any:
        kind: Any
        if "section" in spec:
            section = _SUB[self.model(spec["section"])]
            return _OR_SWITCH[section] if spec.get("or_switch") else section
        if "choices" in spec:
            kind = Literal[tuple(spec["choices"])]
            return Annotated[kind, LOWER] if spec.get("any_case") else kind
        kind = _TYPES[spec["type"]]
        if bounds := {name: spec[name] for name in _BOUNDS if name in spec}:
            kind = Annotated[kind, Field(**bounds)]
        return Annotated[kind, BeforeValidator(whole)] if spec["type"] == "whole" else kind


def _marks(spec: Mapping[str, Any]) -> list[Any]:
    marks: list[Any] = [NOT_NULL] if spec.get("not_null") else []
    if "unit" in spec:
        marks.append(BYTES)
    if "tested" in spec:
        marks.append(Tested(numbers=spec["tested"] == "no text"))
    if spec.keys() & {"stages", "when", "since"}:
        when = getattr(conditions, spec["when"]) if "when" in spec else None
        marks.append(Acts(*spec.get("stages", ()), when=when, since=spec.get("since")))
    return marks

"""What every section of a ds_config shares: strictness, comment keys, dumping, and the number types.

The models describe what DeepSpeed 0.19.8 reads. They are stricter than DeepSpeed on purpose: it takes
``"false"`` for true in some sections and for false in others, and ignores most unknown keys.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function, no_info_plain_validator_function

T = TypeVar("T")

AUTO = "auto"
Auto = Literal["auto"]
"""A value that transformers or accelerate fills in before DeepSpeed sees it, see ``resolving``."""

ZERO = "zero_optimization"
ALL_STAGES = (0, 1, 2, 3)


def is_comment(key: object) -> bool:
    """Whether a key only talks to people or editors: it begins with ``_`` or ``//``, or is ``$schema``."""
    return isinstance(key, str) and (key.startswith(("_", "//")) or key == "$schema")


def whole(value: object) -> object:
    # 5e8 is how people write bucket sizes, and JSON reads it as a float. DeepSpeed too stops at 2**63.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


def _auto_or_value(value: object) -> str:
    return "(auto)" if value == AUTO else "(value)"


def in_stages(stages: Sequence[int]) -> str:
    """`stage 3`, `stages 1, 2 and 3`."""
    *some, last = map(str, stages)
    return f"stages {', '.join(some)} and {last}" if some else f"stage {last}"


BYTES = "bytes"
"""Mark of a number that counts bytes, so that "1M" could mean two things."""


@dataclass(frozen=True)
class Tested:
    """Of a value at which DeepSpeed looks more closely than elsewhere in its section: no text passes."""

    numbers: bool
    """Of a switch: whether 0 and 1 pass, because DeepSpeed computes with the value and does not check its type."""


DEPRECATED: JsonDict = {"deprecated": True}
"""As ``json_schema_extra``: a key that DeepSpeed still reads but wants written otherwise."""


def any_case(*words: str) -> str:
    """A regular expression, of the kind that JSON Schema has, for the words in any case."""
    letters = (
        "".join(f"[{char.upper()}{char.lower()}]" if char.isalpha() else char for char in word) for word in words
    )
    return f"^({'|'.join(letters)})$"


class _Lower:
    """``Annotated[Literal["fp16", "bf16"], LOWER]``: DeepSpeed ignores the case of a word."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._lower, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        words = handler(schema)
        # Editors complete from the list; the pattern lets other cases pass.
        return {"anyOf": [words, {"type": "string", "pattern": any_case(*words.get("enum", ()))}]}

    @staticmethod
    def _lower(value: object) -> object:
        return value.lower() if isinstance(value, str) else value


LOWER = _Lower()


Positive = Annotated[int, Field(ge=1), BeforeValidator(whole)]

# The tags are in parentheses, to tell them from keys in the location of an error.
OrAuto = Annotated[Annotated[T, Tag("(value)")] | Annotated[Auto, Tag("(auto)")], Discriminator(_auto_or_value)]
"""``OrAuto[X]``: an X, or "auto" where at least one of transformers and accelerate fills it."""

OrSwitch = Annotated[
    Annotated[T, Tag("(section)")] | Annotated[bool, Tag("(switch)")],
    Discriminator(lambda value: "(switch)" if isinstance(value, bool) else "(section)"),
]
"""``OrSwitch[X]``: a section X, or true or false."""


def _is_list(value: object) -> str:
    return "(list)" if isinstance(value, list) else "(one)"


OneOrMore = Annotated[Annotated[T, Tag("(one)")] | Annotated[list[T], Tag("(list)")], Discriminator(_is_list)]
"""``OneOrMore[X]``: an X for all groups of parameters, or a list with one for each."""


class _NotNull:
    """``Annotated[X | None, NOT_NULL] = None``: the key may be left out, but ``null`` is refused."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._refuse_null, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        result = handler(schema)
        result["anyOf"] = [option for option in result["anyOf"] if option != {"type": "null"}]
        return result

    @staticmethod
    def _refuse_null(value: object) -> object:
        if value is None:
            raise PydanticCustomError("null", "null")
        return value


NOT_NULL = _NotNull()


class _BuiltLater:
    """The validator of a section is built when a config first has that section: most have few of them."""

    def __get_pydantic_core_schema__(self, source: type[Section], handler: GetCoreSchemaHandler) -> CoreSchema:
        # The JSON Schema of the whole config puts a reference in place of this.
        reference = {SECTION_NAME: source.__name__}
        return no_info_plain_validator_function(
            source.model_validate, metadata={"pydantic_js_functions": [lambda _schema, _handler: reference]}
        )


SECTION_NAME = "$section"
"""Stands in a model's JSON Schema for a section below it; ``schema.py`` replaces it."""

Sub = Annotated[T, _BuiltLater()]
"""``Sub[X]``: a section of the model X."""

Reader = Literal["model", "lookup", "call"]
"""How DeepSpeed reads a section.

- ``model``: by a pydantic model of its own, which refuses unknown keys (comments too), and takes ``"8"``
  for 8, ``"false"`` for false and 1 for true.
- ``lookup``: key by key (``dict.get``), so that unknown keys are ignored, values are used as they are, and
  ``"false"``, like any string, counts as true.
- ``call``: as the keyword arguments of a constructor, which refuses unknown ones; values as they are.
"""


class Section(BaseModel):
    """A JSON object of a ds_config.

    Fields are spelled as in the JSON. Unknown keys, strings for numbers, 0/1 for booleans, NaN and
    infinity are errors. Comment keys are set aside: they are no fields, take part in ``==``, and come
    back from :meth:`dump` in front of the other keys of their section.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True, protected_namespaces=()
    )

    read_by: ClassVar[Reader] = "lookup"
    switch: ClassVar[str | None] = None
    """The key without which the others do nothing, but for `acts_without_switch`."""
    acts_without_switch: ClassVar[tuple[str, ...]] = ()

    _comments: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _set_comments_aside(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict) or not any(map(is_comment, data)):
            return handler(data)
        section = handler({key: value for key, value in data.items() if not is_comment(key)})
        section._comments.update({key: value for key, value in data.items() if is_comment(key)})
        return section

    @classmethod
    @cache
    def defaults(cls) -> Self:
        """The section as DeepSpeed takes it when it is absent. One and the same object each time."""
        return cls.model_construct()

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """The section as plain JSON-ready data; loading it again gives an equal model.

        Args:
            all: also every default, but of deprecated keys. A key whose default is to be absent stays
                absent. Otherwise only what was set is returned, under the prefixed name where DeepSpeed
                knows two.
        """
        result = copy.deepcopy(self._comments)
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            wanted = all and value is not None and field.json_schema_extra is not DEPRECATED
            if wanted or name in self.model_fields_set:
                result[name] = _dumped(value, all=all)
        return result


class SwitchedOnByContent(Section):
    """A section that is as good as absent while it is empty."""

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """As for every section, but an empty one stays empty."""
        return super().dump(all=all and bool(self.model_fields_set))


def _dumped(value: Any, *, all: bool) -> Any:
    if isinstance(value, Section):
        return value.dump(all=all)
    if isinstance(value, dict):
        return {key: _dumped(item, all=all) for key, item in value.items()}
    if isinstance(value, list):
        return [_dumped(item, all=all) for item in value]
    return copy.copy(value)


@cache
def second_names(model: type[BaseModel]) -> dict[str, str]:
    """Field name -> the other name under which DeepSpeed reads the same key."""
    return {
        name: str(field.validation_alias.choices[1])
        for name, field in model.model_fields.items()
        if isinstance(field.validation_alias, AliasChoices)
    }


def two_names(first: str, second: str) -> Any:
    """The alias of a field that DeepSpeed reads under either name; `first` is the field's own."""
    return AliasChoices(first, second)

"""What every section of a ds_config shares: strictness, comment keys, dumping, and the number types.

The models describe what DeepSpeed 0.19.8 reads. They are stricter than DeepSpeed on purpose: it takes
``"false"`` for true in some sections and for false in others, and passes over most unknown keys.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal, Self, TypeVar

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
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

T = TypeVar("T")

AUTO = "auto"
Auto = Literal["auto"]
"""A value that transformers or accelerate fills in before DeepSpeed sees it; see ``auto.py`` for which."""


def is_comment(key: object) -> bool:
    """Whether a key only talks to people: it begins with ``_`` or ``//``."""
    return isinstance(key, str) and key.startswith(("_", "//"))


def whole(value: object) -> object:
    # 5e8 is how people write bucket sizes, and JSON reads it as a float. DeepSpeed too stops at 2**63.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


def _auto_or_value(value: object) -> str:
    return "(auto)" if value == AUTO else "(value)"


Int = Annotated[int, BeforeValidator(whole)]
"""A whole number; ``5e8`` is one, ``"5"`` and ``true`` are not."""
NonNegative = Annotated[int, Field(ge=0), BeforeValidator(whole)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(whole)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

# The tags stand in parentheses so that they can be told from keys in the location of an error.
OrAuto = Annotated[
    Annotated[T, Tag("(value)")] | Annotated[Auto, Tag("(auto)")], Discriminator(_auto_or_value)
]
"""``OrAuto[X]``: an X, or "auto" where at least one of transformers and accelerate fills it."""


class _NotNull:
    """``Annotated[X | None, NOT_NULL] = None``: the key may be left out, but ``null`` is refused."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._refuse_null, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        result = handler(schema)
        result["anyOf"] = [option for option in result["anyOf"] if option != {"type": "null"}]
        return result

    @staticmethod
    def _refuse_null(value: object) -> object:
        if value is None:
            raise PydanticCustomError("null", "null")
        return value


NOT_NULL = _NotNull()

Opaque = Annotated[dict[str, Any] | None, NOT_NULL]
"""A section that DeepSpeed reads and zerokit does not look into yet."""


def _describe_accepted_keys(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Let editors accept comment keys and the second names of keys, as the models do."""
    for part in (schema, *schema.get("properties", {}).values()):
        if part.get("default", ...) is None:
            del part["default"]  # "absent", which editors would offer to write as null
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
    schema["patternProperties"] = {"^(_|//)": {"description": "A comment."}}
    for name, other in second_names(model).items():
        if name in schema.get("properties", {}):
            schema["properties"][other] = {
                **schema["properties"][name],
                "description": f"Another name of `{name}`.",
                "deprecated": True,
            }


class Section(BaseModel):
    """A JSON object of a ds_config.

    Fields are spelled as in the JSON. Unknown keys, strings for numbers, 0/1 for booleans, NaN and
    infinity are errors. Comment keys are set aside: they are no fields, take part in ``==``, and come
    back from :meth:`dump` in front of the other keys of their section.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        json_schema_extra=_describe_accepted_keys,
    )

    _comments: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _set_comments_aside(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict) or not any(map(is_comment, data)):
            return handler(data)
        section = handler({key: value for key, value in data.items() if not is_comment(key)})
        section._comments.update({key: value for key, value in data.items() if is_comment(key)})
        return section

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """The section as plain JSON-ready data; loading it again gives an equal model.

        Args:
            all: also every default. A key whose default is to be absent stays absent. Otherwise only
                what was set is returned, under the prefixed name where DeepSpeed knows two.
        """
        result = copy.deepcopy(self._comments)
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in self.model_fields_set or (all and value is not None):
                result[name] = value.dump(all=all) if isinstance(value, Section) else copy.deepcopy(value)
        return result


def second_names(model: type[BaseModel]) -> dict[str, str]:
    """Field name -> the other name under which DeepSpeed reads the same key."""
    return {
        name: str(field.validation_alias.choices[1])
        for name, field in model.model_fields.items()
        if isinstance(field.validation_alias, AliasChoices)
    }

"""The recipe's ``peft`` section: the method, and its keys, which are peft's own."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import ConfigDict, FiniteFloat, PydanticUserError, TypeAdapter, ValidationError

from zerokit.errors import RecipeError, ZerokitError, collect_errors, did_you_mean, raise_together
from zerokit.extras import require
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import PeftType
from zerokit.recipe.synonyms import meant
from zerokit.spelling import mistyped
from zerokit.tables import table_of
from zerokit.validation import wrong_value

if TYPE_CHECKING:
    from peft import PeftConfig


@dataclass(frozen=True)
class Method:
    """One `peft.type`."""

    config: str
    """Name of peft's config class."""
    noun: str
    tokens: Literal["embedded", "cached"] | None = None
    """How virtual tokens are stored: as embeddings, or as keys and values; None without virtual tokens."""


_TABLE = table_of(__file__)
METHODS: dict[PeftType, Method] = {type_: Method(**row) for type_, row in _TABLE["methods"].items()}
VIRTUAL_TOKENS = 20
"""Default number of virtual tokens, as in peft's documentation."""
_NOT_FOR_TRAINING: Sequence[str] = _TABLE["not_for_training"]
FOUR_BITS: Sequence[str] = _TABLE["four_bits"]
"""Keys of transformers' BitsAndBytesConfig that ``qlora`` accepts in addition to those of its adapter."""


@dataclass(frozen=True)
class PeftSettings:
    """The section `peft` of a recipe, checked."""

    type_: PeftType
    keys: dict[str, Any]
    """Keys of peft's config."""
    four_bits: dict[str, Any]
    """Keys of transformers' BitsAndBytesConfig."""

    @property
    def method(self) -> Method:
        return METHODS[self.type_]

    @property
    def num_virtual_tokens(self) -> int:
        """Number of virtual tokens before each sequence."""
        return int(self.keys.get("num_virtual_tokens", VIRTUAL_TOKENS)) if self.method.tokens else 0


def method_of(loaded: LoadedRecipe) -> Method | None:
    """The method of a recipe; None if all parameters are trained, or the name is unknown."""
    section = loaded.recipe.peft
    asked = None if section is None else section.get("type", "lora")
    return next((method for type_, method in METHODS.items() if type_ == asked), None)


def check_peft_keys(loaded: LoadedRecipe) -> PeftSettings | None:
    """The checked section `peft`; None if all parameters are trained. Raises ZerokitError."""
    section = loaded.recipe.peft
    if section is None:
        return None
    require("peft", where=loaded.where("peft"))
    keys = dict(section)
    type_ = keys.pop("type", "lora")
    if type_ not in tuple(METHODS):  # which may be of any type
        raise RecipeError(
            f"unknown type '{type_}'",
            where=loaded.where("peft", "type"),
            hint=did_you_mean(str(type_), get_args(PeftType)),
        )
    config = METHODS[type_].config
    names = [field.name for field in dataclasses.fields(config_class(type_)) if field.init]
    names = [name for name in names if name not in _NOT_FOR_TRAINING]
    names += FOUR_BITS if type_ == "qlora" else ()
    raise_together(
        RecipeError(
            f"'{key}' is not a {config} key{' (its type is qlora)' * (key in FOUR_BITS)}",
            where=loaded.where("peft", key),
            hint=meant("peft", key, names),
        )
        for key in keys
        if key not in names
    )
    keys |= _checked(loaded, type_, keys)
    four_bits = {name: keys.pop(name) for name in FOUR_BITS if name in keys}
    return PeftSettings(type_, keys, four_bits)


_AT_LEAST = {"r": 1, "num_virtual_tokens": 1}
_NOT_0 = ("lora_alpha",)
"""Keys that must not be 0: an adapter multiplied by it learns nothing."""
_TYPES: Mapping[str, Any] = {"lora_alpha": int | FiniteFloat}
"""Types of keys for which peft accepts more than it declares."""


def _checked(loaded: LoadedRecipe, type_: PeftType, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of peft's config, each of its declared type. Raises all errors together, as RecipeError."""
    types = {**typing.get_type_hints(config_class(type_)), **_TYPES}
    checked: dict[str, Any] = {}
    errors: list[ZerokitError] = []
    for name, value in keys.items():
        with collect_errors(errors, where=loaded.where("peft", name)):
            checked[name] = _checked_value(name, value, types.get(name, Any))
    raise_together(errors)
    return checked


def _checked_value(name: str, value: Any, kind: Any) -> Any:
    """The value, converted to its type from another notation, such as ``'8'`` or ``8.0``."""
    try:
        result = TypeAdapter(kind, config=_ANY_CLASS).validate_python(value)
    except PydanticUserError:  # of a type that has a config of its own
        return value
    except ValidationError as error:
        if isinstance(value, str) and _is_for_people(kind):
            close = mistyped(value, _choices(kind))
            if close is None:
                return value
            raise RecipeError(f"{value!r} is not a choice here", hint=f"Did you mean '{close}'?") from None
        message, hint = wrong_value(error, name)
        raise RecipeError(message, hint=hint) from None
    if isinstance(value, bool) and type(result) in (int, float):  # which Python counts as 1
        raise RecipeError(f"expected a number, found {str(value).lower()}", hint="Change the value")
    if name in _AT_LEAST and result < _AT_LEAST[name]:
        raise RecipeError(f"{name} is {value}", hint=f"Make it at least {_AT_LEAST[name]}")
    if name in _NOT_0 and result == 0:
        raise RecipeError(f"{name} is 0", hint="Write another number")
    # Of an object of its own peft takes a mapping, too, and knows better what may be in it.
    return value if dataclasses.is_dataclass(result) else result


def _is_for_people(kind: Any) -> bool:
    """Whether a type lists patterns of choices, such as ``pissa_niter_[number of iters]``."""
    return any("[" in choice for choice in _choices(kind))


def _choices(kind: Any) -> list[str]:
    """The strings that a type lists."""
    if typing.get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if isinstance(choice, str)]
    return [choice for inner in get_args(kind) for choice in _choices(inner)]


_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)


def config_class(type_: PeftType) -> type[PeftConfig]:
    """peft's class of a method's keys; peft is installed."""
    import peft

    return getattr(peft, METHODS[type_].config)  # type: ignore[no-any-return]


def defaults_of(type_: str) -> dict[str, Any]:
    """Default values of the keys of a method, except those that depend on the model."""
    if type_ not in METHODS:  # a run of another version
        return {}
    defaults = dict(vars(config_class(type_)()))
    return defaults | ({"num_virtual_tokens": VIRTUAL_TOKENS} if METHODS[type_].tokens else {})

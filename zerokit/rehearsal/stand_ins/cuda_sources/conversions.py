"""Values as variables of C++ types hold them, as conditions take them, and as Python is given them."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import BOOL, is_number, kind_named, kind_of, to_kind
from zerokit.rehearsal.stand_ins.cuda_sources.objects import (
    Address,
    Guard,
    Opaque,
    Pointer,
    Present,
    TensorType,
    Vector,
    check,
)
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

_NAMESPACES = re.compile(r"(?<![\w:])(?:::)?(?:(?:std|torch|at|c10|caffe2)::)+")
_ANY = ("", "auto", "decltype(auto)", "Scalar", "cudaError_t", "cudaError")
"""Types that hold a number as it is."""
_VIEWS = ("IntArrayRef", "IntList", "ArrayRef", "TensorList", "initializer_list", "SymIntArrayRef")
_SIMPLE = (Pointer, Address, Guard, TensorType)
"""What is of no type that would make something else of it."""
SCALAR_TYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}
"""By their names in C++ (c10/core/ScalarType.h)."""
_SCALAR_TYPE_NAMES = {dtype: name for name, dtype in SCALAR_TYPES.items()}


def bare(kind: str) -> str:
    """A type without torch's and the library's namespaces, and without references."""
    return _NAMESPACES.sub("", kind).rstrip("&")


def template_of(kind: str) -> tuple[str, list[str]]:
    """The name of a bare type, and the arguments of its template."""
    name, opens, rest = kind.partition("<")
    if not opens or not rest.endswith(">"):
        return kind, []
    parts, depth = [""], 0
    for sign in rest[:-1]:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return name, parts


def of_type(value: Any, kind: str) -> Any:
    """`value` as a variable of that type holds it, whose names of templates and aliases are resolved.

    Raises:
        UnreadError: it is not known what becomes of it.
    """
    said = bare(kind)
    if isinstance(value, Opaque):
        return value
    number = kind_named(said)
    if number is not None:
        return _number_of(value, said)
    name, inner = template_of(said)
    if name in _MADE and inner:
        return _made_of(value, kind, name, inner)
    if name in _VIEWS:
        return value
    if name == "Tensor":
        if isinstance(value, Present) or not (isinstance(value, Tensor) or value in (None, [])):
            raise UnreadError(f"{named(value)} as {kind}")
        return value if isinstance(value, Tensor) else None
    if said in _ANY:
        return copied(value)
    if is_number(value) or said == "dim3":
        return Opaque(f"a value of the type {kind}")
    if isinstance(value, Tensor | list | tuple) and not isinstance(value, _SIMPLE):
        raise UnreadError(f"{named(value)} as {kind}")
    return value


_MADE = ("optional", "vector", "tuple", "pair")
"""Types that are made of others."""


def _made_of(value: Any, kind: str, name: str, inner: list[str]) -> Any:
    if name == "optional":
        if value is None or (type(value) is list and not value):
            return None
        return Present(of_type(value.value if isinstance(value, Present) else value, inner[0]))
    if not isinstance(value, list | tuple) or isinstance(value, _SIMPLE):
        raise UnreadError(f"{named(value)} as {kind}")
    if name == "vector":
        return Vector(inner[0], [of_type(one, inner[0]) for one in value])
    if len(value) != len(inner):
        raise UnreadError(f"{len(value)} values as {kind}")
    return tuple(of_type(one, part) for one, part in zip(value, inner, strict=True))


def _number_of(value: Any, name: str) -> Any:
    kind = kind_named(name)
    assert kind is not None
    if isinstance(value, list) and not isinstance(value, Vector) and len(value) <= 1:
        value = value[0] if value else 0  # in braces
    if is_number(value):
        return to_kind(value, kind)
    if kind is BOOL and (value is None or isinstance(value, Pointer | str)):
        return truth(value)
    if isinstance(value, Pointer) and kind.bits == 64 and kind.is_whole:
        return to_kind(value.address(), kind)
    raise UnreadError(f"{named(value)} as {name}")


def copied(value: Any) -> Any:
    """`value`, or a vector of the same: C++ copies them."""
    if isinstance(value, Vector):
        return Vector(value.element, map(copied, value))
    if isinstance(value, Present):
        return Present(copied(value.value))
    return tuple(map(copied, value)) if type(value) is tuple else value


def type_of(value: Any) -> str | None:
    """The type of a variable that is declared ``auto`` with that value; None if it is not known."""
    if is_number(value):
        return kind_of(value).name
    if isinstance(value, Vector):
        return f"vector<{value.element}>"
    if isinstance(value, Tensor):
        return "Tensor"
    return None if value is None or isinstance(value, Present | tuple) else "auto"


def truth(value: Any) -> bool:
    """What a condition makes of `value`.

    Raises:
        UnreadError: it is no condition.
    """
    check(value)
    if value is None or is_number(value):
        return bool(value)
    if isinstance(value, Pointer):
        return not value.is_null()
    if isinstance(value, Present | Address | str):
        return True
    raise UnreadError(f"a condition on {named(value)}")


def plain(value: Any) -> Any:
    """`value` as Python and torch are given it."""
    if isinstance(value, bool) or value is None:
        return value
    if is_number(value):
        kind_of(value)
        if isinstance(value, float):
            return float(value)
        return (int(value) + 2**63) % 2**64 - 2**63  # torch takes int64_t
    if isinstance(value, Present):
        return plain(value.value)
    if isinstance(value, torch.Size | Opaque | Pointer | Address | TensorType):
        return value
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return [plain(one) for one in value] if isinstance(value, list) else value


def text(value: Any) -> str:
    """What a stream of C++ prints of `value`.

    Raises:
        UnreadError: that is not known.
    """
    if isinstance(value, bool):
        return str(int(value))
    if is_number(value):
        if isinstance(value, float):
            return f"{value:g}"
        if kind_of(value).bits > 8:
            return str(int(value))
    if isinstance(value, list | torch.Size):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, torch.dtype) and value in _SCALAR_TYPE_NAMES:
        return _SCALAR_TYPE_NAMES[value]
    if isinstance(value, str | torch.device):
        return str(value)
    raise UnreadError(f"{named(value)} in a message")


def dtype_name(dtype: torch.dtype) -> str:
    """The scalar type's name in C++."""
    return _SCALAR_TYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def named(value: Any) -> str:
    """What `value` is called in a refusal."""
    if isinstance(value, Opaque):
        return value.what
    if is_number(value):
        return "a number"
    names = {Present: "an optional", type(None): "what is not there", Vector: "a vector", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")

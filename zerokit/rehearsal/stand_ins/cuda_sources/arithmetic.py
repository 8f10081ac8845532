"""Numbers of C++: each has a type, by which operators promote, divide and convert.

Python's own int, float and bool are int64_t, double and bool, which is what torch gives; those of other types
are `Whole` and `Single`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from ctypes import c_float
from typing import Any, NamedTuple

from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

Number = bool | int | float


class Kind(NamedTuple):
    """A type of numbers."""

    name: str
    bits: int
    is_whole: bool = True
    is_signed: bool = True

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest whole number that it holds."""
        return (
            (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.is_signed else (0, (1 << self.bits) - 1)
        )


BOOL = Kind("bool", 1, is_signed=False)
INT = Kind("int", 32)
UNSIGNED = Kind("unsigned", 32, is_signed=False)
LONG = Kind("int64_t", 64)
UNSIGNED_LONG = Kind("uint64_t", 64, is_signed=False)
FLOAT = Kind("float", 32, is_whole=False)
DOUBLE = Kind("double", 64, is_whole=False)
_SIGNED = {8: Kind("int8_t", 8), 16: Kind("int16_t", 16), 32: INT, 64: LONG}
_UNSIGNED = {
    8: Kind("uint8_t", 8, is_signed=False),
    16: Kind("uint16_t", 16, is_signed=False),
    32: UNSIGNED,
    64: UNSIGNED_LONG,
}
_NAMED = {
    **{f"int{bits}_t": kind for bits, kind in _SIGNED.items()},
    **{f"uint{bits}_t": kind for bits, kind in _UNSIGNED.items()},
    **{"bool": BOOL, "float": FLOAT, "double": DOUBLE, "uint": UNSIGNED, "DeviceIndex": _SIGNED[8]},
    **dict.fromkeys(("size_t", "uintptr_t"), UNSIGNED_LONG),
    **dict.fromkeys(("ptrdiff_t", "ssize_t", "intptr_t"), LONG),
}
SPECIFIERS = ("unsigned", "signed", "long", "short", "int", "char")
"""Words that make up names of types, in any order."""
_SPECIFIED = re.compile(rf"(?:{'|'.join(SPECIFIERS)})+")


def kind_named(name: str) -> Kind | None:
    """The type of numbers of that name, which is written without blanks; None if it is none."""
    if name in _NAMED or not _SPECIFIED.fullmatch(name):
        return _NAMED.get(name)
    if "char" in name:
        bits = 8
    elif "short" in name:
        bits = 16
    else:
        bits = 64 if "long" in name else 32
    return (_UNSIGNED if "unsigned" in name else _SIGNED)[bits]


class Whole(int):
    """A whole number of another type than int64_t."""

    kind: Kind

    def __new__(cls, value: int, kind: Kind) -> Whole:
        made = super().__new__(cls, value)
        made.kind = kind
        return made


class Single(float):
    """A float."""


class Unsure(int):
    """A whole number of which it is not known whether its type is one of whole numbers."""


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def kind_of(value: Number) -> Kind:
    """Raises:
    UnreadError: it is not known.
    """
    if isinstance(value, Unsure):
        raise UnreadError("what rests on the type of ?:")
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, float):
        return FLOAT if isinstance(value, Single) else DOUBLE
    return value.kind if isinstance(value, Whole) else LONG


def to_kind(value: Number, kind: Kind) -> Number:
    """`value` converted as C++ does.

    Raises:
        UnreadError: C++ leaves open what comes of it.
    """
    if kind is BOOL:
        return bool(value)
    if not kind.is_whole:
        return Single(c_float(value).value) if kind is FLOAT else float(value)
    least, largest = kind.range
    if isinstance(value, float) and not least - 1 < value < largest + 1:
        raise UnreadError(f"a conversion of {value:g} to {kind.name}, which does not hold it")
    whole = (int(value) - least) % (1 << kind.bits) + least
    return whole if kind is LONG else Whole(whole, kind)


def literal(text: str) -> Number:
    """The number that is written so.

    Raises:
        ValueError: it is none.
    """
    bare = text.replace("'", "")
    found = re.fullmatch(r"(0[xX][\da-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)([uUlLzZ]*)", bare)
    if found is None:
        found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([fFlL]?)", bare)
        if found is None or not set(bare) & set(".eE"):
            raise ValueError(text)
        return to_kind(float(found[1]), FLOAT if found[2] in ("f", "F") else DOUBLE)
    digits, marks = found[1], found[2].lower()
    is_octal = re.fullmatch(r"0[0-7]+", digits) is not None
    value = int(digits, 8) if is_octal else int(digits, 0)
    is_decimal = digits[0] != "0"
    bits = [64] if "l" in marks or "z" in marks else [32, 64]
    for size in bits:
        for kinds in (_SIGNED, _UNSIGNED):
            if ("u" in marks) if kinds is _SIGNED else (is_decimal and "u" not in marks):
                continue
            if value <= kinds[size].range[1]:
                return to_kind(value, kinds[size])
    raise ValueError(text)


def promoted(kind: Kind) -> Kind:
    return INT if kind.is_whole and kind.bits < INT.bits else kind


def common(left: Kind, right: Kind) -> Kind:
    """The type in which an operator works on both."""
    for kind in (DOUBLE, FLOAT):
        if kind in (left, right):
            return kind
    left, right = promoted(left), promoted(right)
    if left.bits != right.bits:
        return left if left.bits > right.bits else right
    return right if left.is_signed else left


def _quotient(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        return left / right
    return left // right if (left >= 0) == (right > 0) else -(-left // right)


_COMPARING: dict[str, Callable[[Any, Any], bool]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt},
    **{"<=": operator.le, ">=": operator.ge},
}
_COMPUTING: dict[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _quotient},
    "%": lambda left, right: left - _quotient(left, right) * right,
    **{"|": operator.or_, "^": operator.xor, "&": operator.and_},
}


def combined(sign: str, left: Number, right: Number) -> Number:
    """What an operator of C++ makes of two numbers.

    Raises:
        UnreadError: C++ leaves open what comes of it.
        ZeroDivisionError: by zero.
    """
    first, second = kind_of(left), kind_of(right)
    if sign in ("<<", ">>"):
        return _shifted(sign, left, right)
    kind = common(first, second)
    left, right = to_kind(left, kind), to_kind(right, kind)
    if sign in _COMPARING:
        return _COMPARING[sign](left, right)
    if not kind.is_whole and sign in "%|^&":
        raise UnreadError(f"{sign} of {kind.name}")
    made = _COMPUTING[sign](_plain(left), _plain(right))
    return _held(made, kind)


def _shifted(sign: str, left: Number, right: Number) -> Number:
    kind = promoted(kind_of(left))
    if not kind.is_whole or isinstance(right, float) or not 0 <= right < kind.bits:
        raise UnreadError(f"a shift by {right:g}")
    value, by = int(left), int(right)
    return _held(value << by if sign == "<<" else value >> by, kind)


def negative(value: Number) -> Number:
    kind = promoted(kind_of(value))
    return _held(-_plain(value), kind)


def inverted(value: Number) -> Number:
    """Raises:
    UnreadError: it is no whole number.
    """
    kind = promoted(kind_of(value))
    if not kind.is_whole:
        raise UnreadError(f"~ of {kind.name}")
    return to_kind(~int(value), kind)


def _plain(value: Number) -> Number:
    return float(value) if isinstance(value, float) else int(value)


def _held(value: Number, kind: Kind) -> Number:
    if kind.is_whole and kind.is_signed and not kind.range[0] <= value <= kind.range[1]:
        raise UnreadError(f"an overflow of {kind.name}")
    return to_kind(value, kind)


def chosen(value: Number, other: Number | None) -> Number:
    """What ``?:`` gives.

    Args:
        value: of its branch that is taken.
        other: of the other; None if that is not known.
    """
    kind = kind_of(value)
    if other is None:
        return value if kind is DOUBLE else Unsure(value) if kind.is_whole else value
    others = kind_of(other)
    return value if others == kind else to_kind(value, common(kind, others))

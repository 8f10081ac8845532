"""Operators of C++ on values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources import arithmetic
from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import INT, Whole, combined, is_number, literal
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import named, plain, truth
from zerokit.rehearsal.stand_ins.cuda_sources.objects import (
    Address,
    Opaque,
    Pointer,
    Present,
    TensorType,
    Thrown,
    check,
)
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError

PRECEDENCE = [
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
]
_TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne},
    **{"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "+": operator.add},
    **{"-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": torch.remainder},
}
_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv},
    **{"|": operator.ior, "&": operator.iand, "^": operator.ixor},
}
_EQUAL = (str, list, torch.Size, torch.dtype, torch.device, TensorType, torch.layout, torch.memory_format)
"""What is compared as a whole."""


def of_torch(function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """What torch gives; where it fails it does so on a GPU, too."""
    try:
        return function(*arguments, **given)
    except Exception as error:
        raise Thrown(error) from error


def number_of(word: Token) -> Any:
    """What a number in a source is."""
    try:
        return literal(word.text)
    except ValueError:
        raise UnreadError(f"the number {word.text}", word) from None


def apply(sign: str, first: Any, second: Any) -> Any:
    """What an operator makes of two values.

    Raises:
        UnreadError: that is not followed.
    """
    for one in (first, second):
        if isinstance(one, Opaque):
            return one
    if is_number(first) and is_number(second):
        return combined(sign, first, second)
    if sign in ("==", "!="):
        return _same(first, second) if sign == "==" else _differ(first, second)
    if sign in _TENSORS and (isinstance(first, Tensor) or isinstance(second, Tensor)):
        return _tensors(sign, first, second)
    if sign in "+-" and isinstance(first, Pointer) and isinstance(second, int):
        return first._replace(is_moved=first.is_moved or second != 0)
    if sign == "+" and isinstance(second, Pointer) and isinstance(first, int):
        return second._replace(is_moved=second.is_moved or first != 0)
    if isinstance(first, str) and isinstance(second, str) and sign == "+":
        return first + second
    raise UnreadError(f"{sign} of {named(first)} and {named(second)}")


def _differ(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return _tensors("!=", first, second)
    return not _same(first, second)


def _same(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return _tensors("==", first, second)
    if first is None or second is None:
        other = second if first is None else first
        if other is None or isinstance(other, Pointer | Present | Address | str):
            return not truth(other)
    elif isinstance(first, Pointer) and isinstance(second, Pointer):
        return first.address() == second.address()
    elif isinstance(first, Present) or isinstance(second, Present):
        left, right = (one.value if isinstance(one, Present) else one for one in (first, second))
        return apply("==", left, right)
    elif any(isinstance(first, one) and isinstance(second, one) for one in _EQUAL):
        check(first, second)
        return first == second
    elif isinstance(first, list | torch.Size) and isinstance(second, list | torch.Size):
        check(first, second)
        return list(first) == list(second)
    elif (isinstance(first, torch.device) and second in ("cuda", "cpu")) or (
        isinstance(second, torch.device) and first in ("cuda", "cpu")
    ):
        return torch.device(first) == torch.device(second)
    raise UnreadError(f"== of {named(first)} and {named(second)}")


def _tensors(sign: str, first: Any, second: Any) -> Any:
    if not all(is_number(one) or isinstance(one, Tensor) for one in (first, second)):
        raise UnreadError(f"{sign} of {named(first)} and {named(second)}")
    return of_torch(_TENSORS[sign], plain(first), plain(second))


def in_place(sign: str, held: Any, value: Any) -> Any:
    """What ``held sign= value`` leaves in `held`: of a tensor, its memory is written."""
    target = held.value
    check(target, value)
    if isinstance(target, Tensor):
        if sign not in _IN_PLACE or not (is_number(value) or isinstance(value, Tensor)):
            raise UnreadError(f"{sign}= of {named(target)} and {named(value)}")
        return of_torch(_IN_PLACE[sign], target, plain(value))
    return held.set(apply(sign, target, value))


def counted(held: Any, by: int) -> tuple[Any, Any]:
    """What ``++`` and ``--`` find and leave in `held`."""
    before = held.value
    check(before)
    if not is_number(before):
        raise UnreadError(f"++ or -- of {named(before)}")
    return before, held.set(combined("+", before, Whole(by, INT)))


def unary(sign: str, value: Any) -> Any:
    """What an operator before a value makes of it."""
    if sign == "*":
        return pointee(value)
    if sign == "!" and not isinstance(value, Tensor):
        return not truth(value)
    check(value)
    if isinstance(value, Tensor):
        made: dict[str, Callable[..., Any]] = {
            "!": torch.logical_not,
            "-": operator.neg,
            "~": operator.invert,
            "+": operator.pos,
        }
        return of_torch(made[sign], value)
    if not is_number(value):
        raise UnreadError(f"{sign} of {named(value)}")
    if sign == "+":
        return arithmetic.combined("+", value, Whole(0, INT)) if isinstance(value, int) else value
    return arithmetic.negative(value) if sign == "-" else arithmetic.inverted(value)


def pointee(value: Any) -> Any:
    """To what a pointer or an optional leads."""
    if isinstance(value, Opaque):
        return value
    if isinstance(value, Present):
        return value.value
    if isinstance(value, Address):
        return value.of.value
    if isinstance(value, Pointer):
        raise UnreadError("what a pointer leads to")
    raise UnreadError(f"* of {named(value)}")

"""What expressions of C++ name, and what is made of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources import operators
from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import is_number
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import truth
from zerokit.rehearsal.stand_ins.cuda_sources.objects import (
    Address,
    Held,
    Opaque,
    Pointer,
    Thrown,
    Vector,
    check,
)
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Element, Run, Scope
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError


class Name:
    """A variable or a constant."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, scope: Scope) -> Any:
        return scope.get(self.name)

    def held(self, scope: Scope) -> Held:
        """What is assigned to."""
        held = scope.held(self.name)
        if held is None:
            raise UnreadError(f"an assignment to {self.name}")
        return held


class _Found:
    """An element that is written in place, and not assigned to."""

    def __init__(self, value: Any, begin: Token) -> None:
        self.value = value
        self._begin = begin

    def set(self, value: Any) -> Any:
        raise UnreadError(f"an assignment to what is no name '{self._begin.text}'", self._begin)


class Indexed:
    """An element.

    Args:
        of: a vector, a view or a tensor.
        at: the place in it.
        begin: the word that names it.
    """

    def __init__(self, of: Run, at: Run, begin: Token) -> None:
        self.of = of
        self._at = at
        self._begin = begin

    def __call__(self, scope: Scope) -> Any:
        value, place = self._found(scope)
        if isinstance(value, Tensor):
            return operators.of_torch(value.__getitem__, int(place))
        return value[int(place)]

    def _found(self, scope: Scope) -> tuple[Any, Any]:
        value, place = self.of(scope), self._at(scope)
        check(value)
        check(place)
        if isinstance(value, Pointer):
            raise UnreadError("what a pointer leads to")
        if isinstance(place, float) or not is_number(place):
            raise UnreadError("an index that is no whole number")
        if not isinstance(value, Tensor) and not 0 <= place < len(value):
            raise UnreadError(f"the element {int(place)} of {len(value)}")
        return value, place

    def held(self, scope: Scope) -> Held:
        value, place = self._found(scope)
        if isinstance(value, Vector):
            return Element(value, int(place))
        found = operators.of_torch(value.__getitem__, int(place)) if isinstance(value, Tensor) else None
        return _Found(found, self._begin)


def number_or_none(run: Run, scope: Scope) -> Any:
    """What `run` would give, if it is a number; None if that is not known."""
    try:
        value = run(scope)
    except (UnreadError, Thrown, ArithmeticError, TypeError, ValueError, LookupError):
        return None
    return value if is_number(value) else None


def counted(inner: Run, word: Token, is_before: bool) -> Run:
    if not isinstance(inner, Name | Indexed):
        raise UnreadError(f"'{word.text}' of what is no name", word)
    by = 1 if word.text == "++" else -1

    def run(scope: Scope) -> Any:
        before, after = operators.counted(inner.held(scope), by)
        return after if is_before else before

    return run


def address_of(inner: Run) -> Run:
    def run(scope: Scope) -> Any:
        if isinstance(inner, Name) and (held := scope.held(inner.name)) is not None:
            return Address(held)
        raise UnreadError("an address")

    return run


def template_argument(name: str) -> Run:
    """A constant or a variable of that name, if there is one; else a type."""

    def run(scope: Scope) -> Any:
        try:
            return scope.get(name)
        except UnreadError:
            return Opaque(scope.resolved(name))

    return run


def combined(sign: str, left: Run, right: Run) -> Run:
    if sign in ("&&", "||"):

        def decide(scope: Scope) -> Any:
            first = truth(left(scope))
            return first if first is (sign == "||") else truth(right(scope))

        return decide
    return lambda scope: operators.apply(sign, left(scope), right(scope))

"""Conditions of the preprocessor, which are expressions of whole numbers."""

from __future__ import annotations

from typing import Any, cast

from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import LONG, UNSIGNED_LONG, kind_of, to_kind
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import truth
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Origin
from zerokit.rehearsal.stand_ins.cuda_sources.expressions import Expressions
from zerokit.rehearsal.stand_ins.cuda_sources.operators import number_of
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Run, Scope, Session
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError


class _Condition(Expressions):
    def read(self) -> Run:
        read = self._ternary()
        if self._next.kind != "end":
            self._refuse()
        return read

    def _number(self) -> Run:
        word = self._next
        value = number_of(self._take())
        if isinstance(value, float):
            raise UnreadError(f"'{word.text}'", word)
        whole = to_kind(value, LONG if kind_of(value).is_signed else UNSIGNED_LONG)
        return lambda scope: whole

    def _named(self) -> Run:
        word = self._take()
        if self._at("(", "::"):
            raise UnreadError(f"'{word.text}'", word)
        return lambda scope: int(word.text == "true")

    def _cast(self) -> Run | None:
        return None

    def _member(self, inner: Run, is_led_to: bool) -> Run:
        self._refuse()

    def _sizeof(self) -> Run:
        self._refuse()


def condition_holds(words: list[Token], where: Token) -> bool:
    """Whether the condition of an ``#if`` holds.

    Args:
        words: its own, after macros.
        where: it stands.

    Raises:
        UnreadError: it is no condition that C++ has there.
    """
    nothing = cast("Session", None)  # which no name of a condition is looked up in
    try:
        scope: Any = Scope(nothing, Origin())
        return truth(_Condition(nothing, words, set()).read()(scope))
    except (UnreadError, ArithmeticError) as unknown:
        said = " ".join(one.text for one in words)
        why = unknown.what if isinstance(unknown, UnreadError) else unknown
        raise UnreadError(f"the condition '{said}', {why}", where) from None

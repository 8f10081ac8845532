"""Expressions of C++, read into Python functions of the names that they see."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Origin, closing, closing_angle
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Returned, Scope, Session
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import SIZES, Opaque, Pointer, check
from zerokit.rehearsal.stand_ins.cuda_sources.words import BUILT_IN, NUMBERS, Words, of_type

Run = Callable[[Scope], Any]
"""Does what a piece of code does."""

_PRECEDENCE = [
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
_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=")


def _quotient(left: Any, right: Any) -> Any:
    if isinstance(left, Tensor | float) or isinstance(right, Tensor | float):
        return left / right
    return left // right if (left >= 0) == (right > 0) else -(-left // right)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne},
    **{"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "+": operator.add},
    **{"-": operator.sub, "*": operator.mul, "/": _quotient, "<<": operator.lshift, ">>": operator.rshift},
    "%": lambda left, right: left - _quotient(left, right) * right,
}


class Expressions(Words):
    """Reads expressions, and blocks that stand in them.

    Args:
        session: what knows the sources' declarations.
        words: the body, without its braces.
        types: names that are types there, besides those that C++ has.
        origin: where it stands.
    """

    def __init__(self, session: Session, words: list[Token], types: set[str], origin: Origin) -> None:
        super().__init__(words)
        self._session = session
        self._types = types
        self._origin = origin

    # ---- expressions
    def _value(self) -> Run:
        """An expression, or a list in braces."""
        if self._at("{"):
            parts = self._arguments("{", "}")
            return lambda scope: [one(scope) for one in parts]
        return self._expression()

    def _arguments(self, opens: str, closes: str) -> list[Run]:
        self._take(opens)
        read = []
        while not self._took(closes):
            read.append(self._lambda() if self._at("[") else self._value())
            if not self._at(closes):
                self._take(",")
        return read

    def _lambda(self) -> Run:
        """One that is run where it stands, as those of AT_DISPATCH are; it sees what is around it."""
        self._place = closing(self._words, self._place) + 1
        if self._at("("):
            if self._words[self._place + 1].text != ")":
                self._refuse()
            self._place += 2
        while not self._at("{"):
            self._take("->", "mutable", "void", "constexpr")
        self._take("{")
        inner = self._statements("}")

        def run(scope: Scope) -> Any:
            def call() -> Any:
                try:
                    with scope.within() as block:
                        inner(block)
                except Returned as returned:
                    return returned.value
                return None

            return call

        return run

    def _expression(self) -> Run:
        begin = self._place
        left = self._ternary()
        if not self._at(*_ASSIGNING):
            return left
        target = self._words[begin]
        if self._place != begin + 1 or target.kind != "name":
            raise UnreadError(f"an assignment to what is no name {target}")
        sign, name = self._take().text, target.text
        value = self._value()

        def run(scope: Scope) -> Any:
            given = value(scope)
            if sign != "=":
                check(given, scope.get(name))
                given = _OPERATORS[sign[:-1]](scope.get(name), given)
            scope.assign(name, given)
            return given

        return run

    def _ternary(self) -> Run:
        condition = self._binary(0)
        if not self._took("?"):
            return condition
        then = self._value()
        self._take(":")
        otherwise = self._value()

        def run(scope: Scope) -> Any:
            holds = condition(scope)
            check(holds)
            return then(scope) if holds else otherwise(scope)

        return run

    def _binary(self, level: int) -> Run:
        if level == len(_PRECEDENCE):
            return self._unary()
        left = self._binary(level + 1)
        while (sign := self._sign(level)) is not None:
            left = _combined(sign, left, self._binary(level + 1))
        return left

    def _sign(self, level: int) -> str | None:
        """The operator of that precedence that stands here, read; None if there is another."""
        sign, length = self._next.text, 1
        if sign == ">":  # never read together with the next, for it may close a template's arguments
            following = self._words[self._place + 1].text
            if following in (">", "="):
                sign, length = sign + following, 2
        if self._next.kind != "sign" or sign not in _PRECEDENCE[level]:
            return None
        self._place += length
        return sign

    def _unary(self) -> Run:
        word = self._next
        if word.kind == "sign" and word.text in ("!", "-", "+", "*", "&", "++", "--"):
            self._take()
            begin = self._place
            inner = self._unary()
            if word.text in ("++", "--"):
                return self._counted(self._words[begin], 1 if word.text == "++" else -1)

            def run(scope: Scope) -> Any:
                value = inner(scope)
                if word.text in ("*", "&", "+"):
                    return value
                check(value)
                return not value if word.text == "!" else -value

            return run
        if word.text == "sizeof":
            return self._sizeof()
        if word.text == "(" and (cast := self._cast()) is not None:
            return cast
        return self._postfix()

    def _counted(self, word: Token, by: int) -> Run:
        def run(scope: Scope) -> Any:
            scope.assign(word.text, scope.get(word.text) + by)
            return scope.get(word.text)

        return run

    def _sizeof(self) -> Run:
        self._take()
        end = closing(self._words, self._place)
        said = [one.text for one in self._words[self._place + 1 : end]]
        self._place = end + 1
        size = SIZES.get(said[-1]) if said else None
        return lambda scope: Opaque("sizeof") if size is None else size

    def _cast(self) -> Run | None:
        begin = self._place
        self._take()
        kind = self._type()
        is_known = kind is not None and (
            kind.rstrip("*&").split("::")[-1] in BUILT_IN | self._types or kind.endswith("*")
        )
        if kind is None or not is_known or not self._took(")"):
            self._place = begin
            return None
        inner = self._unary()
        return lambda scope: of_type(inner(scope), kind)

    def _postfix(self) -> Run:
        read = self._primary()
        while True:
            if self._took(".", "->"):
                read = self._member(read)
            elif self._at("["):
                self._take()
                inner, index = read, self._expression()
                self._take("]")
                read = _indexed(inner, index)
            elif self._at("++", "--") and self._words[self._place - 1].kind == "name":
                word = self._words[self._place - 1]
                read = self._counted(word, 1 if self._take().text == "++" else -1)
            else:
                return read

    def _member(self, inner: Run) -> Run:
        if self._took("template"):
            pass
        name = self._take().text
        if self._at("<") and self._closes_before_call():
            self._place = closing_angle(self._words, self._place) + 1
        arguments = self._arguments("(", ")") if self._at("(") else None

        def run(scope: Scope) -> Any:
            given = None if arguments is None else [one(scope) for one in arguments]
            return self._session.member(inner(scope), name, given)

        return run

    def _closes_before_call(self) -> bool:
        try:
            end = closing_angle(self._words, self._place)
        except UnreadError:
            return False
        return self._words[end + 1].text in ("(", "<<<", "{")

    def _primary(self) -> Run:
        word = self._next
        if word.kind == "number":
            return self._number()
        if word.kind == "string":
            said = self._take().value
            while self._next.kind == "string":
                said += self._take().value
            return lambda scope: said
        if self._took("("):
            inner = self._lambda() if self._at("[") else self._expression()
            self._take(")")
            return inner
        if word.kind != "name":
            self._refuse()
        return self._named()

    def _number(self) -> Run:
        text = self._take().text.replace("'", "")
        bare = text if text[:2] in ("0x", "0X") else text.rstrip("fF")
        bare = bare.rstrip("uUlL")
        is_whole = text[:2] in ("0x", "0X") or not set(text) & set(".eEfF")
        value = int(bare, 0) if is_whole else float(bare)
        return lambda scope: value

    def _named(self) -> Run:
        name = self._take().text
        while self._at("::"):
            self._take()
            name += "::" + self._take().text
        templates: list[Run] = []
        cast = name if name.split("::")[-1] in NUMBERS else None
        if self._at("<") and self._closes_before_call():
            end = closing_angle(self._words, self._place)
            if name.endswith("_cast"):
                self._take("<")
                cast = self._type() or "auto"
            else:
                templates = self._templates(end)
            self._place = end + 1
        if self._at("<<<"):
            return self._launch(name)
        if self._at("{") and (templates or name.startswith("std::")):
            parts = self._arguments("{", "}")
            return lambda scope: [one(scope) for one in parts]
        if not self._at("("):
            return lambda scope: scope.get(name)
        arguments = self._arguments("(", ")")
        if cast is not None and len(arguments) == 1:
            return lambda scope: of_type(arguments[0](scope), cast)
        where = self._words[self._place - 1]

        def run(scope: Scope) -> Any:
            given = [one(scope) for one in arguments]
            return self._session.call(name, given, [one(scope) for one in templates], where, self._origin)

        return run

    def _templates(self, end: int) -> list[Run]:
        """Template arguments, up to the place `end`: values, or types, which are not followed."""
        self._take("<")
        read: list[Run] = []
        while self._place < end:
            begin = self._place
            if (kind := self._type()) is not None and self._at(",", ">"):
                read.append(_template_argument(kind))
            else:
                self._place = begin
                read.append(self._binary(_PRECEDENCE.index(("<<", ">>")) + 1))
            self._took(",")
        return read

    def _launch(self, kernel: str) -> Run:
        while not all(one.text == ">" for one in self._words[self._place : self._place + 3]):
            self._place = closing(self._words, self._place) if self._at("(", "{", "[") else self._place
            if self._take().kind == "end":
                self._refuse()
        self._place += 3
        arguments = self._arguments("(", ")")
        return lambda scope: self._session.launch(kernel, [one(scope) for one in arguments])

    def _statements(self, end: str) -> Run:
        """All up to the word `end`."""
        raise NotImplementedError


def _template_argument(name: str) -> Run:
    """A constant or a variable of that name, if there is one; else a type, which is not followed."""

    def run(scope: Scope) -> Any:
        try:
            return scope.get(name)
        except UnreadError:
            return Opaque(name)

    return run


def _combined(sign: str, left: Run, right: Run) -> Run:
    if sign in ("&&", "||"):

        def decide(scope: Scope) -> Any:
            first = left(scope)
            check(first)
            if bool(first) is (sign == "||"):
                return bool(first)
            second = right(scope)
            check(second)
            return bool(second)

        return decide

    def run(scope: Scope) -> Any:
        first, second = left(scope), right(scope)
        for one in (first, second):
            if isinstance(one, Opaque):
                return one
        if isinstance(first, Pointer):
            return first
        return _OPERATORS[sign](first, second)

    return run


def _indexed(inner: Run, index: Run) -> Run:
    def run(scope: Scope) -> Any:
        value, place = inner(scope), index(scope)
        check(value, place)
        if isinstance(value, Pointer) or (isinstance(place, int) and place < 0):
            raise UnreadError("what a pointer leads to")
        return value[place]

    return run

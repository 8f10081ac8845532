"""Expressions of C++, read into Python functions of the names that they see."""

from __future__ import annotations

from typing import Any

from zerokit.rehearsal.stand_ins.cuda_sources import operators
from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import chosen, is_number, kind_named
from zerokit.rehearsal.stand_ins.cuda_sources.brackets import closing, closing_angle
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import bare, of_type, truth
from zerokit.rehearsal.stand_ins.cuda_sources.objects import (
    Opaque,
)
from zerokit.rehearsal.stand_ins.cuda_sources.places import (
    Indexed,
    Name,
    address_of,
    combined,
    counted,
    number_or_none,
    template_argument,
)
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Returned, Run, Scope, Session
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import ARITHMETIC, CHECKS, SIZES
from zerokit.rehearsal.stand_ins.cuda_sources.words import Words, is_built_in

_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=")
_PURE = {*ARITHMETIC, "size", "numel", "dim", "ndimension", "stride", "element_size", "value", "has_value"}
"""Functions that change nothing."""


class Expressions(Words):
    """Reads expressions, and blocks that stand in them.

    Args:
        session: what knows the sources' declarations.
        words: the body, without its braces.
        types: names that are types there, besides those that C++ has.
    """

    def __init__(self, session: Session, words: list[Token], types: set[str]) -> None:
        super().__init__(words)
        self._session = session
        self._types = set(types)

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
        result = "auto"
        while not self._at("{"):
            if self._take("->", "mutable", "constexpr").text == "->":
                result = self._type() or self._refuse()
        self._take("{")
        inner = self._statements("}")

        def run(scope: Scope) -> Any:
            def call(**types: str) -> Any:
                try:
                    with scope.within() as block:
                        for name, kind in types.items():
                            block.name_type(name, kind)
                        inner(block)
                except Returned as returned:
                    return of_type(returned.value, scope.resolved(result))
                return None

            return call

        return run

    def _expression(self) -> Run:
        begin = self._next
        left = self._ternary()
        sign = self._assigning()
        if sign is None:
            return left
        if not isinstance(left, Name | Indexed):
            raise UnreadError(f"an assignment to what is no name '{begin.text}'", begin)
        value = self._value()

        def run(scope: Scope) -> Any:
            given, held = value(scope), left.held(scope)
            return held.set(given) if sign == "=" else operators.in_place(sign[:-1], held, given)

        return run

    def _assigning(self) -> str | None:
        """The sign of an assignment that stands here, read; None if there is none."""
        if [one.text for one in self._words[self._place : self._place + 3]] == [">", ">", "="]:
            self._place += 3
            return ">>="
        return self._take().text if self._at(*_ASSIGNING) else None

    def _ternary(self) -> Run:
        condition = self._binary(0)
        if not self._took("?"):
            return condition
        begin = self._place
        then = self._value()
        middle = self._place
        self._take(":")
        otherwise = self._value()
        pure = (self._is_pure(begin, middle), self._is_pure(middle, self._place))

        def run(scope: Scope) -> Any:
            holds = truth(condition(scope))
            taken, other = (then, otherwise) if holds else (otherwise, then)
            value = taken(scope)
            if not is_number(value):
                return value
            return chosen(value, number_or_none(other, scope) if pure[holds] else None)

        return run

    def _is_pure(self, begin: int, end: int) -> bool:
        """Whether what stands there can be evaluated where C++ does not."""
        for place in range(begin, end):
            word, following = self._words[place], self._words[place + 1].text
            if word.text in (*_ASSIGNING, "++", "--", "[") and word.kind == "sign":
                return False
            is_called = word.kind == "name" and following in ("(", "<")
            if (
                is_called
                and word.text not in _PURE
                and kind_named(word.text) is None
                and word.text != "static_cast"
            ):
                return False
        return True

    def _binary(self, level: int) -> Run:
        if level == len(operators.PRECEDENCE):
            return self._unary()
        left = self._binary(level + 1)
        while (sign := self._sign(level)) is not None:
            left = combined(sign, left, self._binary(level + 1))
        return left

    def _sign(self, level: int) -> str | None:
        """The operator of that precedence that stands here, read; None if there is another."""
        sign, length = self._next.text, 1
        if sign == ">":  # never read together with the next, for it may close a template's arguments
            following = [one.text for one in self._words[self._place + 1 : self._place + 3]]
            if following == [">", "="]:
                return None
            if following[0] in (">", "="):
                sign, length = sign + following[0], 2
        if self._next.kind != "sign" or sign not in operators.PRECEDENCE[level]:
            return None
        self._place += length
        return sign

    def _unary(self) -> Run:
        word = self._next
        if word.kind == "sign" and word.text in ("!", "-", "+", "*", "~", "&", "++", "--"):
            self._take()
            inner = self._unary()
            if word.text in ("++", "--"):
                return counted(inner, word, is_before=True)
            if word.text == "&":
                return address_of(inner)
            return lambda scope: operators.unary(word.text, inner(scope))
        if word.text == "sizeof" and word.kind == "name":
            return self._sizeof()
        if self._at("(") and (cast := self._cast()) is not None:
            return cast
        return self._postfix()

    def _sizeof(self) -> Run:
        self._take()
        end = closing(self._words, self._place)
        self._take("(")
        kind = self._type()
        said = "" if self._place != end or kind is None else kind
        self._place = end + 1

        def run(scope: Scope) -> Any:
            name = bare(scope.resolved(said))
            number = kind_named(name)
            size = SIZES.get(name) if number is None else max(1, number.bits // 8)
            if size is None and said and scope.held(said) is None and name.endswith("*"):
                size = 8
            return Opaque("sizeof") if size is None else of_type(size, "size_t")

        return run

    def _cast(self) -> Run | None:
        begin = self._place
        self._take()
        kind = self._type()
        is_known = kind is not None and (
            is_built_in(kind.rstrip("*&")) or bare(kind).rstrip("*&") in self._types or kind[-1] == "*"
        )
        if kind is None or not is_known or not self._took(")"):
            self._place = begin
            return None
        inner = self._unary()
        return lambda scope: of_type(inner(scope), scope.resolved(kind))

    def _postfix(self) -> Run:
        begin = self._next
        read = self._primary()
        while True:
            if self._at(".", "->"):
                read = self._member(read, is_led_to=self._take().text == "->")
            elif self._took("["):
                index = self._expression()
                self._take("]")
                read = Indexed(read, index, begin)
            elif self._at("++", "--"):
                read = counted(read, self._take(), is_before=False)
            else:
                return read

    def _member(self, inner: Run, is_led_to: bool) -> Run:
        self._took("template")
        name = self._take().text
        kind: str | None = None
        if self._at("<") and self._closes_before_call():
            end = closing_angle(self._words, self._place)
            self._take("<")
            kind = self._type() if name == "item" else None
            self._place = end + 1
        arguments = self._arguments("(", ")") if self._at("(") else None

        def run(scope: Scope) -> Any:
            value = inner(scope)
            given = None if arguments is None else [one(scope) for one in arguments]
            found = self._session.member(operators.pointee(value) if is_led_to else value, name, given)
            return found if kind is None else of_type(found, scope.resolved(kind))

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
        if word.kind == "character":
            self._take()
            return lambda scope: Opaque(f"the character {word.text}")
        if self._took("("):
            inner = self._lambda() if self._at("[") else self._expression()
            self._take(")")
            return inner
        if word.kind != "name":
            self._refuse()
        return self._named()

    def _number(self) -> Run:
        value = operators.number_of(self._take())
        return lambda scope: value

    def _named(self) -> Run:
        begin = self._next
        name = "::" if self._took("::") else ""
        name += self._take().text
        while self._took("::"):
            name += "::" + self._take().text
        templates: list[Run] = []
        cast = name if kind_named(bare(name)) is not None else None
        if self._at("<") and self._closes_before_call():
            end = closing_angle(self._words, self._place)
            if name.endswith("_cast"):
                self._take("<")
                cast = self._type() or "auto"
            elif self._words[end + 1].text == "{":
                name += "".join(one.text for one in self._words[self._place : end + 1])
            else:
                templates = self._templates(end)
            self._place = end + 1
        if self._at("<<<"):
            return self._launch(name)
        if self._at("{") and ("<" in name or name.startswith("std::") or bare(name) in self._types):
            parts = self._arguments("{", "}")
            return lambda scope: of_type([one(scope) for one in parts], scope.resolved(name))
        if not self._at("("):
            return Name(name)
        arguments = self._arguments("(", ")")
        if len(arguments) == 1 and cast is not None:
            kind = cast
            return lambda scope: of_type(arguments[0](scope), scope.resolved(kind))
        return self._call(name, arguments, templates, begin)

    def _call(self, name: str, arguments: list[Run], templates: list[Run], where: Token) -> Run:
        is_check = name.rpartition("::")[2] in CHECKS

        def run(scope: Scope) -> Any:
            try:
                if is_check and arguments and truth(arguments[0](scope)):
                    return None  # the message is not evaluated
                given = [one(scope) for one in arguments]
                if len(given) == 1 and is_number(given[0]) and self._is_type(name, scope):
                    return of_type(given[0], scope.resolved(name))
                return self._session.call(name, given, [one(scope) for one in templates], scope)
            except UnreadError as unknown:
                unknown.where = unknown.where or where
                raise

        return run

    def _is_type(self, name: str, scope: Scope) -> bool:
        return name in self._types or scope.resolved(name) != name

    def _templates(self, end: int) -> list[Run]:
        """Template arguments, up to the place `end`: values, or types."""
        self._take("<")
        read: list[Run] = []
        while self._place < end:
            begin = self._place
            if (kind := self._type()) is not None and self._at(",", ">"):
                read.append(template_argument(kind))
            else:
                self._place = begin
                read.append(self._binary(operators.PRECEDENCE.index(("<<", ">>")) + 1))
            if self._place < end:
                self._take(",")
        return read

    def _launch(self, kernel: str) -> Run:
        while not all(one.text == ">" for one in self._words[self._place : self._place + 3]):
            self._place = closing(self._words, self._place) if self._at("(", "{", "[") else self._place
            self._take()
        self._place += 3
        arguments = self._arguments("(", ")")
        return lambda scope: self._session.launch(kernel, [one(scope) for one in arguments])

    def _statements(self, end: str) -> Run:
        """All up to the word `end`."""
        raise NotImplementedError

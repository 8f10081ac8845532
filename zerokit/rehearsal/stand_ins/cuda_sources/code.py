"""Bodies of C++ functions, read into Python functions of the names that they see."""

from __future__ import annotations

from typing import Any, NoReturn

from zerokit.rehearsal.stand_ins.cuda_sources.expressions import Expressions, Run
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Returned, Scope
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import Opaque, check, vector
from zerokit.rehearsal.stand_ins.cuda_sources.words import BUILT_IN, of_type

_REFUSED = ("switch", "goto", "try", "break", "continue", "delete", "struct")

_STATEMENTS = ("if", "for", "while", "do", "return", "throw", "using", "typedef")


class Reader(Expressions):
    """Reads one body."""

    # ---- statements
    def body(self) -> Run:
        """All statements up to the end."""
        return self._statements("the end of a function")

    def _statements(self, end: str) -> Run:
        read = []
        while self._next.kind != "end" and not self._at(end):
            read.append(self._statement())
        self._place += 1

        def run(scope: Scope) -> None:
            for one in read:
                one(scope)

        return run

    def _statement(self) -> Run:
        word = self._next
        if self._took("{"):
            inner = self._statements("}")

            def run_block(scope: Scope) -> None:
                with scope.within() as block:
                    inner(block)

            return run_block
        if self._took(";"):
            return lambda scope: None
        if word.kind == "name" and word.text in _STATEMENTS:
            return getattr(self, f"_{word.text}")()  # type: ignore[no-any-return]
        if word.text in _REFUSED:
            self._refuse()
        run = self._declaration() or self._expression()
        self._take(";")
        return run

    def _using(self) -> Run:
        while not self._took(";"):
            self._place += 1
        return lambda scope: None

    _typedef = _using

    def _return(self) -> Run:
        self._take()
        value: Run = (lambda scope: None) if self._at(";") else self._value()
        self._take(";")

        def run(scope: Scope) -> NoReturn:
            raise Returned(value(scope))

        return run

    def _throw(self) -> Run:
        word = self._take()
        value = self._value()
        self._take(";")

        def run(scope: Scope) -> NoReturn:
            thrown = value(scope)
            if not isinstance(thrown, Exception):
                raise UnreadError(str(word))
            raise thrown

        return run

    def _condition(self) -> Run:
        """In parentheses; it may declare what it looks at."""
        self._take("(")
        condition = self._declaration() or self._expression()
        self._take(")")
        return condition

    def _if(self) -> Run:
        self._take()
        self._took("constexpr")
        condition = self._condition()
        then = self._statement()
        otherwise = self._statement() if self._took("else") else None

        def run(scope: Scope) -> None:
            scope = scope.within()
            holds = condition(scope)
            check(holds)
            if holds:
                then(scope)
            elif otherwise is not None:
                otherwise(scope)

        return run

    def _while(self) -> Run:
        self._take()
        condition = self._condition()
        return self._loop(lambda scope: None, condition, lambda scope: None, self._statement())

    def _do(self) -> Run:
        self._take()
        inner = self._statement()
        self._take("while")
        again = self._loop(lambda scope: None, self._condition(), lambda scope: None, inner)
        self._take(";")

        def run(scope: Scope) -> None:
            inner(scope)
            again(scope)

        return run

    def _for(self) -> Run:
        self._take()
        self._take("(")
        first: Run = (lambda scope: None) if self._at(";") else (self._declaration() or self._expression())
        if self._at(":"):
            self._refuse()
        self._take(";")
        condition: Run = (lambda scope: True) if self._at(";") else self._expression()
        self._take(";")
        after: Run = (lambda scope: None) if self._at(")") else self._expression()
        self._take(")")
        return self._loop(first, condition, after, self._statement())

    @staticmethod
    def _loop(first: Run, condition: Run, after: Run, inner: Run) -> Run:
        def run(scope: Scope) -> None:
            scope = scope.within()
            first(scope)
            while True:
                holds = condition(scope)
                check(holds)
                if not holds:
                    return
                inner(scope)
                after(scope)

        return run

    # ---- declarations
    def _declaration(self) -> Run | None:
        """Variables of one type; None, and nothing read, if this is an expression."""
        begin = self._place
        kind = self._type()
        if kind is None or self._next.kind != "name" or self._words[self._place + 1].text not in "=;(){,:":
            self._place = begin
            return None
        element = self._element(begin)
        read = []
        while True:
            name = self._take().text
            if self._at("=") and self._words[self._place + 1].text != "=":
                self._take()
                read.append((name, self._value()))
            elif self._at("("):
                read.append((name, self._made(kind, element, self._arguments("(", ")"))))
            elif self._at("{") and element is not None:
                read.append((name, self._value()))
            elif self._at("{"):
                read.append((name, self._made(kind, None, self._arguments("{", "}"))))
            else:
                read.append((name, self._begun(kind, element, name)))
            if not self._took(","):
                break
            while self._at("*", "&"):
                self._take()
        bare = kind.replace("const", "").rstrip("&")

        def run(scope: Scope) -> Any:
            for name, value in read:
                scope.declare(name, of_type(value(scope), bare))
            return scope.get(read[-1][0])

        return run

    def _element(self, begin: int) -> str | None:
        """Of what the vector is whose type begins at `begin`; None if that is no vector."""
        said = [one.text for one in self._words[begin : self._place]]
        if "vector" not in said:
            return None
        inner = said[said.index("vector") + 2 :]
        return "".join(inner[: len(inner) - inner[::-1].index(">") - 1])

    def _made(self, kind: str, element: str | None, arguments: list[Run]) -> Run:
        if element is not None:
            return lambda scope: vector(element, [one(scope) for one in arguments])
        if len(arguments) == 1 and (kind.split("::")[-1] in BUILT_IN | {"Tensor"} or "*" in kind):
            return arguments[0]
        return self._constructed(kind, arguments)

    def _begun(self, kind: str, element: str | None, name: str) -> Run:
        """What a variable holds that is declared without a value."""
        bare = kind.removesuffix("<>").split("::")[-1]
        if element is not None:
            return lambda scope: []
        if bare in BUILT_IN or "*" in kind:
            return lambda scope: Opaque(f"{name}, which is given no value")
        if bare in ("Tensor", "optional"):
            return lambda scope: None
        return self._constructed(kind, [])

    def _constructed(self, kind: str, arguments: list[Run]) -> Run:
        where, name = self._words[self._place - 1], kind.removesuffix("<>")

        def run(scope: Scope) -> Any:
            return self._session.call(name, [one(scope) for one in arguments], [], where, self._origin)

        return run

"""Bodies of C++ functions, read into Python functions of the names that they see."""

from __future__ import annotations

from typing import Any, NoReturn

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import is_number
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import bare, named, template_of, truth
from zerokit.rehearsal.stand_ins.cuda_sources.expressions import Expressions
from zerokit.rehearsal.stand_ins.cuda_sources.objects import Opaque, Thrown, Vector, check
from zerokit.rehearsal.stand_ins.cuda_sources.places import Indexed, Name
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Broke, Continued, Element, Returned, Run, Scope
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import vector
from zerokit.rehearsal.stand_ins.cuda_sources.words import is_built_in

_REFUSED = ("switch", "goto", "try", "delete", "struct", "enum", "class", "asm")

_STATEMENTS = ("if", "for", "while", "do", "return", "throw", "using", "typedef", "break", "continue")


class Reader(Expressions):
    """Reads one body."""

    # ---- statements
    def body(self) -> Run:
        """All statements up to the end."""
        return self._statements("the end of a function")

    def _statements(self, end: str) -> Run:
        read = []
        while self._next.kind != "end" and not self._at(end):
            read.append((self._next, self._statement()))
        self._place += 1

        def run(scope: Scope) -> None:
            for word, one in read:
                _run(one, word, scope)

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
        """A name for a type; what else is taken over from namespaces is looked for in all of them."""
        self._take()
        name = self._take().text
        if not self._took("="):
            while not self._took(";"):
                self._take()
            return lambda scope: None
        kind = self._type()
        self._take(";")
        return self._naming(name, kind)

    def _typedef(self) -> Run:
        self._take()
        kind = self._type()
        name = self._take().text
        self._take(";")
        return self._naming(name, kind)

    def _naming(self, name: str, kind: str | None) -> Run:
        self._types.add(name)
        return lambda scope: scope.name_type(name, None if kind is None else scope.resolved(kind))

    def _break(self) -> Run:
        leaves = Broke if self._take().text == "break" else Continued
        self._take(";")

        def run(scope: Scope) -> NoReturn:
            raise leaves

        return run

    _continue = _break

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
                raise UnreadError(f"'throw' of {named(thrown)}", word)
            raise Thrown(thrown)

        return run

    def _condition(self) -> Run:
        """In parentheses; it may declare what it looks at."""
        self._take("(")
        condition = self._declaration(is_condition=True) or self._expression()
        self._take(")")
        return condition

    def _if(self) -> Run:
        self._take()
        self._took("constexpr")
        condition = self._condition()
        then = self._statement()
        otherwise = self._statement() if self._took("else") else None

        def run(scope: Scope) -> None:
            with scope.within() as block:
                if truth(condition(block)):
                    then(block)
                elif otherwise is not None:
                    otherwise(block)

        return run

    def _while(self) -> Run:
        self._take()
        condition = self._condition()
        return _loop(_nothing, condition, _nothing, self._statement())

    def _do(self) -> Run:
        self._take()
        inner = self._statement()
        self._take("while")
        condition = self._condition()
        self._take(";")

        def run(scope: Scope) -> None:
            while _round(inner, scope) and truth(condition(scope)):
                pass

        return run

    def _for(self) -> Run:
        self._take()
        self._take("(")
        begin = self._place
        kind = self._type()
        if kind is not None and self._next.kind == "name" and self._words[self._place + 1].text == ":":
            return self._each(kind)
        self._place = begin
        first: Run = _nothing if self._at(";") else (self._declaration() or self._expression())
        self._take(";")
        condition: Run = (lambda scope: True) if self._at(";") else self._expression()
        self._take(";")
        after = []
        while not self._took(")"):
            after.append(self._expression())
            if not self._at(")"):
                self._take(",")

        def step(scope: Scope) -> None:
            for one in after:
                one(scope)

        return _loop(first, condition, step, self._statement())

    def _each(self, kind: str) -> Run:
        """A loop over what a vector or a view holds."""
        name = self._take().text
        self._take(":")
        values = self._value()
        self._take(")")
        inner = self._statement()

        def run(scope: Scope) -> None:
            found = values(scope)
            check(found)
            if not isinstance(found, list):
                raise UnreadError(f"a loop over {named(found)}")
            count = len(found)
            for place in range(count):
                if len(found) != count:
                    raise UnreadError("a loop over a vector that grows in it")
                with scope.within() as block:
                    if kind.endswith("&") and isinstance(found, Vector):
                        block.refer(name, Element(found, place))
                    else:
                        block.declare(name, found[place], kind)
                    if not _round(inner, block):
                        return

        return run

    # ---- declarations
    def _declaration(self, *, is_condition: bool = False) -> Run | None:
        """Variables of one type; None, and nothing read, if this is an expression."""
        begin = self._place
        kind = self._type()
        follows = ("=", "{") if is_condition else ("=", ";", "(", "{", ",")
        if kind is not None and self._at("[") and bare(kind) == "auto":
            return self._unpacked()
        following = self._words[min(self._place + 1, len(self._words) - 1)].text
        if kind is None or self._next.kind != "name" or following not in follows:
            self._place = begin
            return None
        said = {one.text for one in self._words[begin : self._place]}
        if "static" in said and not said & {"const", "constexpr"}:
            raise UnreadError("'static'", self._words[begin])
        read = []
        base = kind.rstrip("*&")
        while True:
            read.append(self._declared(kind, is_const="const" in said))
            if not self._took(","):
                break
            kind = base
            while self._at("*", "&"):
                kind += self._take().text
        if "static" in said and "constexpr" not in said:
            read = [self._static(one, self._words[begin]) for one in read]

        def run(scope: Scope) -> Any:
            made = None
            for one in read:
                made = one(scope)
            return made

        return run

    def _declared(self, kind: str, is_const: bool) -> Run:
        """One variable of that type."""
        word = self._take()
        name = word.text
        element = _element(kind)
        value: Run
        if self._took("="):
            value = self._value()
        elif self._at("("):
            value = self._made(kind, element, self._arguments("(", ")"), word)
        elif self._at("{") and (element is not None or bare(kind).partition("<")[0] in ("optional", "tuple")):
            value = self._value()
        elif self._at("{"):
            value = self._in_braces(kind, word)
        else:
            value = self._begun(kind, element, word)
        if kind.endswith("&"):
            return self._reference(name, kind, value, is_const, word)
        return lambda scope: scope.declare(name, value(scope), kind)

    def _reference(self, name: str, kind: str, value: Run, is_const: bool, word: Token) -> Run:
        def run(scope: Scope) -> Any:
            if isinstance(value, Name) and (held := scope.held(value.name)) is not None:
                scope.refer(name, held)
                return held.value
            found = value(scope)
            if isinstance(value, Indexed) and isinstance(value.of(scope), Vector):
                scope.refer(name, value.held(scope))
                return found
            if not is_const and kind[-2:] != "&&" and is_number(found):
                raise UnreadError(f"the reference {name}", word)
            return scope.declare(name, found, kind)

        return run

    def _static(self, declared: Run, word: Token) -> Run:
        """A constant that is kept between calls."""
        kept: list[Any] = []

        def run(scope: Scope) -> Any:
            made = declared(scope)
            if not (is_number(made) or isinstance(made, str | None)):
                raise UnreadError(f"'static' of {named(made)}", word)
            if kept and kept[0] != made:
                raise UnreadError("'static' of what differs between calls", word)
            kept[:] = [made]
            return made

        return run

    def _unpacked(self) -> Run:
        """``auto [a, b] = ...``."""
        self._take("[")
        names = [self._take().text]
        while self._took(","):
            names.append(self._take().text)
        self._take("]")
        self._take("=")
        value = self._value()

        def run(scope: Scope) -> None:
            found = value(scope)
            if type(found) is not tuple or len(found) != len(names):
                raise UnreadError(f"{named(found)} in {len(names)} names")
            for name, one in zip(names, found, strict=True):
                scope.declare(name, one, "auto")

        return run

    def _made(self, kind: str, element: str | None, arguments: list[Run], where: Token) -> Run:
        if element is not None:
            return lambda scope: vector(scope.resolved(element), [one(scope) for one in arguments])
        if len(arguments) == 1 and (is_built_in(kind) or bare(kind) in ("Tensor", "auto") or "*" in kind):
            return arguments[0]
        return self._call(kind.partition("<")[0], arguments, [], where)

    def _in_braces(self, kind: str, where: Token) -> Run:
        parts = self._arguments("{", "}")
        if parts:
            return self._made(kind, None, parts, where)
        return (lambda scope: []) if is_built_in(kind) else self._begun(kind, None, where)

    def _begun(self, kind: str, element: str | None, where: Token) -> Run:
        """What a variable holds that is declared without a value."""
        said = bare(kind).partition("<")[0]
        if element is not None:
            return lambda scope: []
        if is_built_in(kind) or "*" in kind or kind in self._types:
            return lambda scope: Opaque(f"{where.text}, which is given no value")
        if said in ("Tensor", "optional"):
            return lambda scope: None
        return self._call(kind.partition("<")[0], [], [], where)


def _element(kind: str) -> str | None:
    """Of what the vector is; None if that is no vector."""
    name, inner = template_of(bare(kind))
    return inner[0] if name == "vector" and inner else None


def _nothing(scope: Scope) -> None:
    pass


def _run(statement: Run, word: Token, scope: Scope) -> None:
    """Run a statement; what it cannot be run for is told with its line.

    Raises:
        UnreadError: it is not followed.
    """
    try:
        statement(scope)
    except (Thrown, RehearsalGap):
        raise
    except UnreadError as unknown:
        unknown.where = unknown.where or word
        raise
    except Exception as error:
        raise UnreadError(f"what fails as {type(error).__name__}: {error}", word) from error


def _round(inner: Run, scope: Scope) -> bool:
    """A round of a loop; whether another may follow."""
    try:
        inner(scope)
    except Broke:
        return False
    except Continued:
        pass
    return True


def _loop(first: Run, condition: Run, after: Run, inner: Run) -> Run:
    def run(scope: Scope) -> None:
        with scope.within() as block:
            first(block)
            while truth(condition(block)):
                with block.within() as within:
                    if not _round(inner, within):
                        return
                after(block)

    return run

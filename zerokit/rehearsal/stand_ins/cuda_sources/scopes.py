"""The names that C++ code sees, and what its calls lead to."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

from zerokit.rehearsal.stand_ins.cuda_sources.conversions import of_type, type_of
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Origin
from zerokit.rehearsal.stand_ins.cuda_sources.objects import Guard, Held, Vector
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

_NAME = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")


class Returned(BaseException):
    """A function has returned."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Broke(BaseException):
    """A loop is left."""


class Continued(BaseException):
    """A round of a loop is left."""


class Session(Protocol):
    """What code calls."""

    def call(self, name: str, arguments: list[Any], templates: list[Any], scope: Scope) -> Any: ...
    def member(self, value: Any, name: str, arguments: list[Any] | None) -> Any: ...
    def launch(self, kernel: str, arguments: list[Any]) -> None: ...
    def constant(self, name: str, origin: Origin) -> Any: ...
    def alias(self, name: str) -> str | None: ...


class Variable:
    """Of a type, which it converts to what it is given.

    Args:
        name: of the variable.
        value: that it begins with.
        kind: its type; None if it is not known.
        is_callers: it is what the caller has, which would have to be changed there.
    """

    def __init__(self, name: str, value: Any, kind: str | None, is_callers: bool = False) -> None:
        self._name = name
        self.value = value
        self._kind = kind
        self._is_callers = is_callers

    def set(self, value: Any) -> Any:
        if self._is_callers:
            raise UnreadError(f"an assignment to {self._name}, which is the caller's")
        if self._kind is None:
            raise UnreadError(f"an assignment to {self._name}, whose type is not known")
        self.value = of_type(value, self._kind)
        return self.value


class Element:
    """Of a vector."""

    def __init__(self, vector: Vector, place: int) -> None:
        self._vector = vector
        self._place = place

    @property
    def value(self) -> Any:
        return self._vector[self._place]

    @value.setter
    def value(self, value: Any) -> None:
        self._vector[self._place] = value

    def set(self, value: Any) -> Any:
        self.value = of_type(value, self._vector.element)
        return self.value


class Scope:
    """Variables of a block, inside those around it.

    Args:
        session: what knows the sources' declarations.
        origin: where the code stands.
        around: the block around it.
    """

    def __init__(self, session: Session, origin: Origin, around: Scope | None = None) -> None:
        self.origin = origin
        self._session = session
        self._around = around
        self._held: dict[str, Held] = {}
        self._types: dict[str, str | None] = {}
        self._guards = ExitStack()

    def within(self) -> Scope:
        """A block in this one."""
        return Scope(self._session, self.origin, self)

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *failed: Any) -> None:
        self._guards.__exit__(*failed)

    def declare(self, name: str, value: Any, kind: str, *, is_callers: bool = False) -> Any:
        """Have a variable; a guard holds until the block is left.

        Args:
            name: of the variable.
            value: that it begins with, converted to its type.
            kind: its type, unresolved.
            is_callers: it is a reference to what the caller has.
        """
        if isinstance(value, Guard):
            self._guards.enter_context(value.begin())
        resolved = self.resolved(kind)
        is_same = kind.endswith("&") and isinstance(value, Vector)
        converted = value if is_same else of_type(value, resolved)
        bare = resolved.rstrip("&")
        known = type_of(converted) if bare in ("auto", "decltype(auto)") else bare
        self._held[name] = Variable(name, converted, known, is_callers)
        return converted

    def refer(self, name: str, to: Held) -> None:
        """Have a reference to what another name holds."""
        self._held[name] = to

    def name_type(self, name: str, kind: str | None) -> None:
        """Have a name for a type; None if it is not known which."""
        self._types[name] = kind

    def resolved(self, kind: str) -> str:
        """A type whose names are replaced by what they stand for."""

        def meant(found: re.Match[str]) -> str:
            scope: Scope | None = self
            while scope is not None:
                if found[0] in scope._types:
                    return scope._types[found[0]] or found[0]
                scope = scope._around
            alias = self._session.alias(found[0])
            return self.resolved(alias) if alias is not None else found[0]

        return _NAME.sub(meant, kind)

    def held(self, name: str) -> Held | None:
        """The variable of that name; None if there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._held:
                return scope._held[name]
            scope = scope._around
        return None

    def get(self, name: str) -> Any:
        """The value of a variable or a constant.

        Raises:
            UnreadError: there is none.
        """
        held = self.held(name)
        return self._session.constant(name, self.origin) if held is None else held.value

    def assign(self, name: str, value: Any) -> Any:
        held = self.held(name)
        if held is None:
            raise UnreadError(f"an assignment to {name}")
        return held.set(value)


Run = Callable[[Scope], Any]
"""Does what a piece of code does."""

"""The names that C++ code sees, and what its calls lead to."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol

from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Origin
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import Guard


class Returned(BaseException):
    """A function has returned."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Session(Protocol):
    """What code calls."""

    def call(
        self, name: str, arguments: list[Any], templates: list[Any], where: Token, origin: Origin
    ) -> Any: ...
    def member(self, value: Any, name: str, arguments: list[Any] | None) -> Any: ...
    def launch(self, kernel: str, arguments: list[Any]) -> None: ...
    def constant(self, name: str) -> Any: ...


class Scope:
    """Variables of a block, inside those around it."""

    def __init__(
        self, session: Session, around: Scope | None = None, fixed: frozenset[str] = frozenset()
    ) -> None:
        self._session = session
        self._around = around
        self._values: dict[str, Any] = {}
        self._fixed = fixed
        """Names of what the caller has, which would have to be changed there."""
        self._guards = ExitStack()

    def within(self) -> Scope:
        """A block in this one."""
        return Scope(self._session, self)

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *failed: Any) -> None:
        self._guards.__exit__(*failed)

    def declare(self, name: str, value: Any) -> None:
        """Have a variable; a guard holds until the block is left."""
        if isinstance(value, Guard):
            self._guards.enter_context(value.begin())
        self._values[name] = value

    def get(self, name: str) -> Any:
        """The value of a variable or a constant.

        Raises:
            UnreadError: there is none.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope._around
        return self._session.constant(name)

    def assign(self, name: str, value: Any) -> None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                if name in scope._fixed:
                    raise UnreadError(f"an assignment to {name}, which is the caller's")
                scope._values[name] = value
                return
            scope = scope._around
        raise UnreadError(f"an assignment to {name}")

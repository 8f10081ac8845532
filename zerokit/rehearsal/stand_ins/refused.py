"""Modules of packages that scripts import whether they use them or not: each function is refused when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from zerokit.rehearsal.errors import RehearsalGap

__all__ = ()


def refused_function(name: str) -> Callable[..., NoReturn]:
    """A function in place of `name` that libraries can import, and that ends the rehearsal when it is called."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RehearsalGap(name)

    return refuse

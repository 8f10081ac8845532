"""Functions with the signature of a package's function, written as text."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from packaging.version import Version

from zerokit.rehearsal.stand_ins.packages import known_packages
from zerokit.tables import table_of

Result = TypeVar("Result")
Given = Mapping[str, Any]
"""The arguments of a call by name, in the order of the parameters, defaults included."""


def positional(parameters: str, name: str = "") -> Callable[[Callable[[Given], Result]], Callable[..., Result]]:
    """Makes a function of `Given` one of exactly these arguments, by position alone.

    pybind does so with functions whose arguments have no names.

    Args:
        parameters: names in order, between spaces.
        name: of the op in errors; the function's name if it is empty.
    """
    names = parameters.split()

    def with_signature(function: Callable[[Given], Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Result:
            if len(arguments) != len(names):
                missing = f"; missing: {', '.join(names[len(arguments) :])}" * (len(arguments) < len(names))
                count = f"takes {len(names)} arguments, got {len(arguments)}"
                raise TypeError(f"{name or call.__name__}() {count}{missing}")
            return function(dict(zip(names, arguments, strict=True)))

        return call

    return with_signature


def with_parameters(parameters: str, since: str = "") -> Callable[[Callable[[Given], Any]], Callable[..., Any]]:
    """Makes a function of `Given` one with a package's signature: any argument by position or by name.

    It is that of the newest release; its attribute `of_version` gives that of another (packages.of_version).

    Args:
        parameters: names in order, between spaces, each with its default, if it has one, after ``=``, and
            the releases that have it, if not all have, after ``@``: ``@2.3``, ``@2.3-2.7`` (before 2.7),
            ``@-2.7``.
        since: the first release that has the function.
    """

    def with_signature(function: Callable[[Given], Any]) -> Callable[..., Any]:
        def of(version: str) -> Callable[..., Any] | None:
            return _call(function, parameters, version) if is_within(version, since, "") else None

        newest = _call(function, parameters, known_packages()[0].newest)
        newest.__dict__["of_version"] = of
        return newest

    return with_signature


def functions_of(file: str) -> Callable[..., Callable[..., Any]]:
    """A decorator as :func:`with_parameters` for functions of a file, by the signatures in its table.

    The table has lines of parameters by the name of the function. The first release that has the function
    follows its name after ``@``. A second argument of the decorator is the name, if it is not the function's own.
    """
    rows = {key.partition("@")[::2]: " ".join(lines) for key, lines in table_of(file).items()}
    known = {name: (parameters, since) for (name, since), parameters in rows.items()}

    def sign(function: Callable[[Given], Any], name: str = "") -> Callable[..., Any]:
        @functools.wraps(function)
        def named(given: Given) -> Any:
            return function(given)

        named.__name__ = name or function.__name__
        return with_parameters(*known[named.__name__])(named)

    return sign


def is_within(version: str, since: str, until: str) -> bool:
    """Whether `version` is `since` or later, and before `until`; an empty one is no bound."""
    own = Version(version)
    return not (since and own < Version(since)) and not (until and own >= Version(until))


def _call(function: Callable[[Given], Any], parameters: str, version: str) -> Callable[..., Any]:
    texts = [text.partition("@")[::2] for text in parameters.split()]
    signature = inspect.Signature(
        [_parameter(*text.split("=")) for text, releases in texts if _is_in(releases, version)]
    )

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            refusal = TypeError(f"{function.__name__}() {error}")
            refusal.__dict__["module"] = function.__module__  # for `failures`, which names the package
            raise refusal from None
        bound.apply_defaults()
        return function(bound.arguments)

    call.__dict__["__signature__"] = signature  # what libraries look at to see which options there are
    return call


def _is_in(releases: str, version: str) -> bool:
    since, _, until = releases.partition("-")
    return is_within(version, since, until)


def _parameter(name: str, default: str | None = None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)

"""Extensions whose sources are read: their functions for Python, run without a compiler."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.cuda_sources import values
from zerokit.rehearsal.stand_ins.cuda_sources.code import Reader
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Function, Origin, Sources
from zerokit.rehearsal.stand_ins.cuda_sources.expressions import Run
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Returned, Scope
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import CONSTANTS, Opaque, Pointer, called, check
from zerokit.rehearsal.stand_ins.cuda_sources.words import of_type
from zerokit.rehearsal.stand_ins.launched_kernels import launch

HINT = (
    "Let the script use PyTorch's own operators where ZEROKIT_REHEARSAL is set, or measure this run on a GPU"
)
_CHECKS = {
    **dict.fromkeys(("TORCH_CHECK", "AT_ASSERTM", "TORCH_INTERNAL_ASSERT", "AT_ASSERT"), RuntimeError),
    "TORCH_CHECK_VALUE": ValueError,
    "TORCH_CHECK_TYPE": TypeError,
    "TORCH_CHECK_INDEX": IndexError,
    "TORCH_CHECK_NOT_IMPLEMENTED": NotImplementedError,
}
"""And what Python is told where they fail (c10/util/Exception.h)."""
_COMPARED = {
    "TORCH_CHECK_EQ": operator.eq,
    "TORCH_CHECK_NE": operator.ne,
    "TORCH_CHECK_LT": operator.lt,
    "TORCH_CHECK_LE": operator.le,
    "TORCH_CHECK_GT": operator.gt,
    "TORCH_CHECK_GE": operator.ge,
}
_NAMESPACES = ("torch::", "at::", "c10::", "std::")


class Extension:
    """The functions of one extension.

    Args:
        name: of the extension, by which limits are told.
        sources: what it is compiled from.
    """

    def __init__(self, name: str, sources: Sources) -> None:
        self._name = name
        self._sources = sources
        self._read: dict[int, Run] = {}
        self._constants: dict[str, Any] = {}

    def function(
        self, name: str, origin: Origin, named: Sequence[tuple[str, list[Token]]] = ()
    ) -> Callable[..., Any]:
        """What Python calls for the C++ function `name`.

        Args:
            name: as it is handed over.
            origin: where that is.
            named: the names that its arguments have in Python, and their defaults, unread.

        The function raises:
            RehearsalGap: its code is not understood.
            RuntimeError: a check of its own fails.
            TypeError: it is given a keyword that it does not have.
        """

        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                given = [*arguments]
                for key, default in named[len(arguments) :]:
                    if key not in keywords and not default:
                        break
                    given.append(keywords.pop(key) if key in keywords else self._value(default, origin))
                if keywords:
                    raise TypeError(f"{name}(): incompatible function arguments: {', '.join(keywords)}")
                found = self._sources.function(name, origin, len(given))
                if found is None:
                    raise UnreadError(f"no function {name} of {len(given)} arguments")
                return self._run(found, given, [])
            except UnreadError as unknown:
                raise RehearsalGap(
                    f"'{name}' of the CUDA extension '{self._name}': its code is not compiled but read, and "
                    f"has {unknown}",
                    hint=HINT,
                ) from None

        call.__name__ = name.rpartition("::")[2]
        return call

    def _run(self, function: Function, arguments: list[Any], templates: list[Any]) -> Any:
        if id(function) not in self._read:
            self._read[id(function)] = self._read_body(function.body, function.origin)
        changed = frozenset(one.name for one in function.parameters if one.is_reference)
        with Scope(self, fixed=changed) as scope:
            return self._run_in(scope, function, arguments, templates)

    def _run_in(self, scope: Scope, function: Function, arguments: list[Any], templates: list[Any]) -> Any:
        for place, parameter in enumerate(function.parameters):
            given = place < len(arguments)
            value = arguments[place] if given else self._value(parameter.default, function.origin)
            if parameter.is_read and isinstance(value, Pointer):
                value = value._replace(is_read=True)
            value = list(value) if isinstance(value, tuple) else of_type(value, parameter.type)
            scope.declare(parameter.name, value)
        for (name, is_value), value in zip(function.templates, templates, strict=False):
            scope.declare(name, value if is_value else Opaque("a type"))
        try:
            self._read[id(function)](scope)
        except Returned as returned:
            return of_type(returned.value, function.result)
        return None

    def _read_body(self, words: list[Token], origin: Origin) -> Run:
        return Reader(self, words, self._sources.types, origin).body()

    def _value(self, words: list[Token], origin: Origin) -> Any:
        end = Token("sign", ";", "", 0)
        run = self._read_body([Token("name", "return", "", 0), *words, end], origin)
        try:
            run(Scope(self))
        except Returned as returned:
            return returned.value
        return None

    # ---- what code calls
    def constant(self, name: str) -> Any:
        bare = name.rpartition("::")[2]
        if bare in self._sources.constants:
            if bare not in self._constants:
                self._constants[bare] = self._value(self._sources.constants[bare], Origin())
            return self._constants[bare]
        known = name
        for namespace in _NAMESPACES:
            known = known.removeprefix(namespace)
        if known in CONSTANTS:
            return CONSTANTS[known]
        if name.startswith(("cuda", "cublas", "at::cuda")):
            return Opaque(name)
        raise UnreadError(f"the name {name}")

    def call(
        self, name: str, arguments: list[Any], templates: list[Any], where: Token, origin: Origin
    ) -> Any:
        last = name.rpartition("::")[2]
        if last in _CHECKS:
            check(arguments[0])
            if not arguments[0]:
                raise _CHECKS[last]("".join(map(str, arguments[1:])) or "Expected a condition to be true")
            return None
        if last in _COMPARED:
            return _compare(last, *arguments)
        if last.startswith(("AT_DISPATCH_", "DISPATCH_")) and callable(arguments[-1]):
            return arguments[-1]()
        if not name.startswith(_NAMESPACES):
            found = self._sources.function(name, origin, len(arguments))
            if found is not None:
                return self._run(found, arguments, templates)
        if last in ("max", "min") and len(templates) == 1 and isinstance(templates[0], Opaque):
            arguments = [of_type(one, templates[0].what) for one in arguments]
        try:
            return called(name, arguments)
        except UnreadError as unknown:
            raise UnreadError(f"{unknown} ({where.file}:{where.line})") from None

    def member(self, value: Any, name: str, arguments: list[Any] | None) -> Any:
        return values.member(value, name, arguments)

    def launch(self, kernel: str, arguments: list[Any]) -> None:
        """Have a kernel write what it is not given to read alone."""
        name = kernel.rpartition("::")[2]
        parameters = self._sources.kernels.get(name, [])
        given = {str(place): _led_to(value) for place, value in enumerate(arguments)}
        written = [
            str(place)
            for place, value in enumerate(arguments)
            if isinstance(value, Tensor)
            or (
                isinstance(value, Pointer)
                and not value.is_read
                and not (place < len(parameters) and parameters[place].is_read)
            )
        ]
        launch("CUDA kernels compiled at run time", name, given, written)


def _compare(name: str, first: Any, second: Any) -> Opaque:
    """Check two values against each other; what is given takes the message that may follow by `<<`."""
    check(first, second)
    if not _COMPARED[name](first, second):
        raise RuntimeError(f"{name} failed: {first} vs. {second}")
    return Opaque(name)


def _led_to(value: Any) -> Any:
    return value.tensor if isinstance(value, Pointer) else value

"""Extensions whose sources are read: their functions for Python, run without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import BOOL, kind_named
from zerokit.rehearsal.stand_ins.cuda_sources.code import Reader
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import bare, of_type, plain, text, truth, type_of
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Function, Origin, Parameter, Sources
from zerokit.rehearsal.stand_ins.cuda_sources.dispatch import dispatch
from zerokit.rehearsal.stand_ins.cuda_sources.members import member
from zerokit.rehearsal.stand_ins.cuda_sources.objects import Opaque, Pointer, Thrown, check
from zerokit.rehearsal.stand_ins.cuda_sources.operators import apply, of_torch
from zerokit.rehearsal.stand_ins.cuda_sources.scopes import Returned, Run, Scope
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.values import CHECKS, CONSTANTS, called, vector
from zerokit.rehearsal.stand_ins.launched_kernels import launch

HINT = (
    "Let the script use PyTorch's own operators where ZEROKIT_REHEARSAL is set, or measure this run on a GPU"
)
_COMPARED = {
    **{"TORCH_CHECK_EQ": "==", "TORCH_CHECK_NE": "!=", "TORCH_CHECK_LT": "<", "TORCH_CHECK_LE": "<="},
    **{"TORCH_CHECK_GT": ">", "TORCH_CHECK_GE": ">="},
}


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
        self._constants: dict[int, Any] = {}

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
                    raise Thrown(
                        TypeError(f"{name}(): incompatible function arguments: {', '.join(keywords)}")
                    )
                found = self._sources.function(name, origin, len(given))
                if found is None:
                    raise UnreadError(f"no function {name} of {len(given)} arguments")
                for value, parameter in zip(given, found.parameters, strict=False):
                    self._check_taken(name, value, parameter)
                result = self._run(found, [_from_python(one) for one in given], [])
                check(result)
                return plain(result)
            except Thrown as thrown:
                raise thrown.error from thrown.error.__cause__
            except UnreadError as unknown:
                raise RehearsalGap(
                    f"'{name}' of the CUDA extension '{self._name}': its code is not compiled but read, and "
                    f"has {unknown}",
                    hint=HINT,
                ) from None

        call.__name__ = name.rpartition("::")[2]
        return call

    def _check_taken(self, name: str, value: Any, parameter: Parameter) -> None:
        """pybind11 turns no fraction into a whole number."""
        kind = kind_named(bare(Scope(self, Origin()).resolved(parameter.type)))
        if kind is None or isinstance(value, bool | int):
            is_taken = (
                kind is None or not kind.is_whole or kind.range[0] <= value <= kind.range[1] or kind is BOOL
            )
        else:
            is_taken = isinstance(value, float) and (not kind.is_whole or kind is BOOL)
            if not isinstance(value, float | str | list | tuple | None):
                raise UnreadError(f"{type(value).__name__} as {parameter.type}")
        if not is_taken:
            raise Thrown(
                TypeError(f"{name}(): incompatible function arguments: {value!r} as {parameter.type}")
            )

    def _run(self, function: Function, arguments: list[Any], templates: list[Any]) -> Any:
        if id(function) not in self._read:
            self._read[id(function)] = self._read_body(function.body)
        with Scope(self, function.origin) as scope:
            return self._run_in(scope, function, arguments, templates)

    def _run_in(self, scope: Scope, function: Function, arguments: list[Any], templates: list[Any]) -> Any:
        given = [
            arguments[place] if place < len(arguments) else self._value(parameter.default, function.origin)
            for place, parameter in enumerate(function.parameters)
        ]
        self._instantiate(scope, function, given, templates)
        for value, parameter in zip(given, function.parameters, strict=True):
            if parameter.is_read and isinstance(value, Pointer):
                value = value._replace(is_read=True)
            scope.declare(parameter.name, value, parameter.type, is_callers=parameter.is_reference)
        try:
            self._read[id(function)](scope)
        except Returned as returned:
            return of_type(returned.value, scope.resolved(function.result))
        return None

    def _instantiate(self, scope: Scope, function: Function, given: list[Any], templates: list[Any]) -> None:
        """Give the function's template parameters what they stand for: what is said, or what is deduced."""
        for place, (name, kind) in enumerate(function.templates):
            said = templates[place] if place < len(templates) else None
            if kind is not None:
                value = Opaque(f"the template's {name}") if said is None else said
                scope.declare(name, value, "auto" if isinstance(value, Opaque) else kind)
            elif isinstance(said, Opaque):
                scope.name_type(name, said.what)
            else:
                found = {
                    type_of(value)
                    for value, parameter in zip(given, function.parameters, strict=True)
                    if parameter.type.rstrip("&") == name and not isinstance(value, Opaque)
                }
                scope.name_type(name, found.pop() if len(found) == 1 else None)

    def _read_body(self, words: list[Token]) -> Run:
        return Reader(self, words, self._sources.types).body()

    def _value(self, words: list[Token], origin: Origin) -> Any:
        at = words[0] if words else Token("end", "", "", 0)
        said = [at._replace(kind="name", text="return"), *words, at._replace(kind="sign", text=";")]
        try:
            self._read_body(said)(Scope(self, origin))
        except Returned as returned:
            return returned.value
        return None

    # ---- what code calls
    def constant(self, name: str, origin: Origin) -> Any:
        found = self._sources.constant(name, origin)
        if found is not None:
            if id(found) not in self._constants:
                value = self._value(found.body, found.origin)
                self._constants[id(found)] = Scope(self, found.origin).declare(name, value, found.type)
            return self._constants[id(found)]
        known = bare(name)
        if known in CONSTANTS:
            return CONSTANTS[known]
        if name.startswith(("cuda", "cublas", "at::cuda")):
            return Opaque(name)
        raise UnreadError(f"the name {name}")

    def alias(self, name: str) -> str | None:
        return self._sources.aliases.get(name)

    def call(self, name: str, arguments: list[Any], templates: list[Any], scope: Scope) -> Any:
        last = name.rpartition("::")[2]
        if last in CHECKS:
            check(arguments[0])
            if not truth(arguments[0]):
                said = "".join(map(text, arguments[1:]))
                raise Thrown(CHECKS[last](said or "Expected a condition to be true"))
            return None
        if last in _COMPARED and len(arguments) == 2:
            return _compare(last, *arguments)
        is_of_libraries = bare(name) != name
        found = None if is_of_libraries else self._sources.function(name, scope.origin, len(arguments))
        if found is not None:
            return self._run(found, arguments, templates)
        if last.startswith("AT_DISPATCH_"):
            return dispatch(last, arguments)
        if last in ("max", "min") and len(templates) == 1 and isinstance(templates[0], Opaque):
            arguments = [of_type(one, templates[0].what) for one in arguments]
        if last == "get" and len(templates) == 1 and type(arguments[0]) is tuple:
            return arguments[0][templates[0]]
        if last == "vector" and len(templates) == 1 and isinstance(templates[0], Opaque):
            return vector(templates[0].what, arguments)
        return called(name, arguments)

    def member(self, value: Any, name: str, arguments: list[Any] | None) -> Any:
        return member(value, name, arguments)

    def launch(self, kernel: str, arguments: list[Any]) -> None:
        """Have a kernel write what it is not given to read alone."""
        name = kernel.rpartition("::")[2]
        known = [one for one in self._sources.kernels.get(name, []) if len(one) >= len(arguments)]
        given = {str(place): _led_to(value) for place, value in enumerate(arguments)}
        written = [
            str(place)
            for place, value in enumerate(arguments)
            if isinstance(value, Tensor)
            or (
                isinstance(value, Pointer)
                and not value.is_read
                and not (known and all(one[place].is_read for one in known))
            )
        ]
        of_torch(launch, "CUDA kernels compiled at run time", name, given, written)


def _compare(name: str, first: Any, second: Any) -> Opaque:
    """Check two values against each other; what is given takes the message that may follow by `<<`."""
    check(first, second)
    if not truth(apply(_COMPARED[name], first, second)):
        raise Thrown(RuntimeError(f"{name} failed: {text(first)} vs. {text(second)}"))
    return Opaque(name)


def _from_python(value: Any) -> Any:
    """What C++ is given: a copy of a list."""
    return list(value) if isinstance(value, tuple) else value


def _led_to(value: Any) -> Any:
    return value.tensor if isinstance(value, Pointer) else value

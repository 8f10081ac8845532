"""What sources show to Python: operators of TORCH_LIBRARY, and functions of a pybind11 module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Bindings, Function, Sources
from zerokit.rehearsal.stand_ins.cuda_sources.running import Extension
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError, arguments_at

_TYPES = {
    "Tensor": "Tensor",
    "optional<Tensor>": "Tensor?",
    "vector<Tensor>": "Tensor[]",
    "TensorList": "Tensor[]",
    "int64_t": "int",
    "double": "float",
    "bool": "bool",
    "string": "str",
    "vector<int64_t>": "int[]",
    "IntArrayRef": "int[]",
    "optional<int64_t>": "int?",
    "optional<double>": "float?",
    "void": "()",
}
"""Types of C++ as schemas have them (torch/library.h infers schemas so)."""
_ANY_DEVICE = "CompositeImplicitAutograd"
"""Where torch registers a function that comes with its definition."""
_libraries: list[Any] = []
"""Operators go with the object that defined them."""


def bind(name: str, sources: Sources, functions: list[str]) -> ModuleType:
    """Register the operators of an extension, and give the module of its functions.

    Args:
        name: of the extension.
        sources: what it is compiled from.
        functions: those that Python is shown besides what the sources say (`load_inline`).

    Raises:
        UnreadError: something that it shows is not understood, or it shows nothing.
    """
    extension = Extension(name, sources)
    module = ModuleType(name)
    shown = {one: one for one in functions}
    for block in sources.bindings:
        if block.macro == "PYBIND11_MODULE":
            shown |= {said: function for _, said, function in _calls(block)}
        else:
            _register(block, extension, sources)
    vars(module).update({said: extension.function(function) for said, function in shown.items()})
    if not shown and not sources.bindings:
        raise UnreadError("nothing that it shows to Python")
    return module


def _library(space: str, kind: str) -> Any:
    make: Any = torch.library.Library  # which torch does not type
    return make(space, kind)


def _register(block: Bindings, extension: Extension, sources: Sources) -> None:
    space = block.arguments[0]
    if block.macro == "TORCH_LIBRARY_IMPL":
        library = _library(space, "IMPL")
        for _, said, function in _calls(block):
            library.impl(said, _kernel(space, said, extension.function(function)), block.arguments[1])
        _libraries.append(library)
        return
    library = _library(space, "FRAGMENT")
    _libraries.append(library)
    for word, said, function in _calls(block):
        operator = said.partition("(")[0]
        if word == "def":
            library.define(said if "(" in said else f"{said}{_schema(sources, function)}")
        if function:
            library.impl(operator, _kernel(space, operator, extension.function(function)), _ANY_DEVICE)


def _kernel(space: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        result = function(*arguments)
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        return tuple(result) if len(operator._schema.returns) > 1 else result

    return run


def _calls(block: Bindings) -> Iterator[tuple[str, str, str]]:
    """Each ``def`` and ``impl``: which, the name or schema that it has, and the function; "" for none."""
    words = block.body
    for place, word in enumerate(words):
        if word.text not in ("def", "impl") or words[place - 1].text != "." or words[place + 1].text != "(":
            continue
        given, _ = arguments_at(words, place + 1)
        said = "".join(one.value for one in given[0] if one.kind == "string")
        yield word.text, said, _referred(given[1]) if len(given) > 1 else ""


def _referred(words: list[Token]) -> str:
    """The function that is handed over: ``&f``, ``f``, ``TORCH_FN(f)`` or ``dispatch(kCUDA, &f)``."""
    if words[0].text == "[" or any(one.text == "{" for one in words):
        raise UnreadError(f"a lambda that is shown to Python {words[0]}")
    names = [one.text for one in words if one.kind == "name"]
    return names[-1] if names else ""


def _schema(sources: Sources, name: str) -> str:
    found = sources.functions.get(name)
    if not found:
        raise UnreadError(f"the function {name}, whose code it does not have")
    function: Function = found[0]
    taken = [f"{_type(one.type, name)} _{place}" for place, one in enumerate(function.parameters)]
    return f"({', '.join(taken)}) -> {_result(function.result, name)}"


def _bare(kind: str) -> str:
    for namespace in ("torch::", "at::", "c10::", "std::"):
        kind = kind.replace(namespace, "")
    return kind.rstrip("&")


def _type(kind: str, name: str) -> str:
    if _bare(kind) not in _TYPES:
        raise UnreadError(f"the type {kind} in what {name} takes or gives")
    return _TYPES[_bare(kind)]


def _result(kind: str, name: str) -> str:
    bare = _bare(kind)
    if bare.startswith("tuple<"):
        return "(" + ", ".join(_type(part, name) for part in bare[6:-1].split(",")) + ")"
    return _type(kind, name)

"""What sources show to Python: operators of TORCH_LIBRARY, and functions of a pybind11 module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.stand_ins.cuda_sources.brackets import split
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Bindings, Origin, Sources
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
    for block in sources.bindings:
        if block.macro == "PYBIND11_MODULE":
            for _, said, function, named in _calls(block):
                if hasattr(module, said):
                    raise UnreadError(f"more than one function {said} that Python is shown", block.body[0])
                vars(module)[said] = extension.function(function, block.origin, named)
        else:
            _register(block, extension, sources)
    vars(module).update({one: extension.function(one, Origin()) for one in functions})
    if not functions and not sources.bindings:
        raise UnreadError("nothing that it shows to Python")
    return module


def _library(space: str, kind: str) -> Any:
    make: Any = torch.library.Library  # which torch does not type
    return make(space, kind)


def _register(block: Bindings, extension: Extension, sources: Sources) -> None:
    space = block.arguments[0]
    if block.macro == "TORCH_LIBRARY_IMPL":
        library = _library(space, "IMPL")
        for _, said, function, _named in _calls(block):
            kernel = _kernel(space, said, extension.function(function, block.origin))
            library.impl(said, kernel, block.arguments[1])
        _libraries.append(library)
        return
    library = _library(space, "FRAGMENT")
    _libraries.append(library)
    for word, said, function, _named in _calls(block):
        operator = said.partition("(")[0]
        if word == "def":
            library.define(said if "(" in said else f"{said}{_schema(sources, function, block.origin)}")
        if function:
            kernel = _kernel(space, operator, extension.function(function, block.origin))
            library.impl(operator, kernel, _ANY_DEVICE)


def _kernel(space: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        packet, _, overload = name.partition(".")
        schema = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")._schema
        # torch leaves out what equals its default.
        rest = [keywords.get(one.name, one.default_value) for one in schema.arguments[len(arguments) :]]
        result = function(*arguments, *rest)
        return tuple(result) if len(schema.returns) > 1 else result

    return run


def _calls(block: Bindings) -> Iterator[tuple[str, str, str, list[tuple[str, list[Token]]]]]:
    """Each ``def`` and ``impl``: which, the name or schema that it has, the function, "" for none, and its
    arguments' names and defaults.
    """
    words, place = block.body, 0
    while place < len(words):
        if words[place].text == ";":
            place += 1
            continue
        begin = words[place]
        said = [one.text for one in words[place : place + 5]]
        if begin.text != block.arguments[-1]:
            raise UnreadError(f"'{begin.text}'", begin)
        if said[1:] == [".", "doc", "(", ")"]:
            while place < len(words) and words[place].text != ";":
                place += 1
            continue
        place += 1
        while place < len(words) and words[place].text != ";":
            if [one.text for one in words[place : place + 3]] not in ([".", "def", "("], [".", "impl", "("]):
                raise UnreadError(f"'{words[min(place + 1, len(words) - 1)].text}'", words[place])
            which = words[place + 1].text
            given, place = arguments_at(words, place + 2)
            yield which, *_shown(given, words[place - 1])


def _shown(given: list[list[Token]], where: Token) -> tuple[str, str, list[tuple[str, list[Token]]]]:
    """The name or schema, the function, and its arguments' names and defaults."""
    if not given or any(one.kind != "string" for one in given[0]):
        raise UnreadError("what is shown to Python under a name that is no string", where)
    said = "".join(one.value for one in given[0])
    named = [_argument(part) for part in given[2:] if any(one.text in ("arg", "_a") for one in part)]
    return said, _referred(given[1]) if len(given) > 1 else "", named


def _argument(words: list[Token]) -> tuple[str, list[Token]]:
    """The name and the default of ``py::arg("name") = default`` or ``"name"_a = default``."""
    said, *default = split(words, "=")
    return next(one.value for one in said if one.kind == "string"), default[0] if default else []


def _referred(words: list[Token]) -> str:
    """The function that is handed over: ``&f``, ``f``, ``TORCH_FN(f)`` or ``dispatch(kCUDA, &f)``."""
    if words[0].text == "[" or any(one.text == "{" for one in words):
        raise UnreadError("a lambda that is shown to Python", words[0])
    last = max((place for place, one in enumerate(words) if one.kind == "name"), default=None)
    if last is None:
        return ""
    name = words[last].text
    while last > 1 and words[last - 1].text == "::" and words[last - 2].kind == "name":
        last -= 2
        name = f"{words[last].text}::{name}"
    return name


def _schema(sources: Sources, name: str, origin: Origin) -> str:
    function = sources.function(name, origin)
    if function is None:
        raise UnreadError(f"the function {name}, whose code it does not have")
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

"""Finds the arguments that a Triton kernel writes, from its source.

It follows addresses from parameters through assignments and called functions to `tl.store`, atomic operations
and methods of tensor descriptors. A parameter that cannot be followed counts as written.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

_WRITES = ("store", "atomic_", "scatter", "shared_to_global")
"""Parts of the names of operations that write to an address, in Triton's language and in Gluon."""
_READS = ("load", "gather", "global_to_shared")
"""Parts of the names of operations that read. The results of both are values, not addresses."""
_OPAQUE = ("inline_asm", "extern_elementwise")
"""Operations that run code of another language, which may write."""

Names = frozenset[str]


def written_parameters(function: Callable[..., Any]) -> Names:
    """Parameters through which a kernel writes; `function` is the Python function under `@triton.jit`."""
    return _effects(function, frozenset())[0]


@functools.cache
def _effects(function: Callable[..., Any], callers: frozenset[Callable[..., Any]]) -> tuple[Names, Names]:
    """The parameters through which `function` writes, and those that its result may be an address from.

    One that calls itself, as over a constexpr, is among its `callers`.
    """
    parameters = frozenset(inspect.signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return parameters, parameters
    if function in callers:
        return parameters, parameters
    return _Addresses(function, parameters, callers | {function}).effects_of(tree.body[0])


class _Addresses:
    """Follows the addresses of one function: which parameters each local name may have been made from."""

    def __init__(
        self, function: Callable[..., Any], parameters: Names, callers: frozenset[Callable[..., Any]]
    ) -> None:
        self._callers = callers
        closure = inspect.getclosurevars(function).nonlocals
        self._names = {**vars(builtins), **function.__globals__, **closure}
        self._made_from = {name: frozenset([name]) for name in parameters}

    def effects_of(self, function: ast.AST) -> tuple[Names, Names]:
        statements = list(ast.walk(function))
        while self._assign(statements):  # until nothing changes: a name may be used above its assignment
            pass
        written = _union(self._written(node) for node in statements if isinstance(node, ast.Call))
        returned = (node.value for node in statements if isinstance(node, ast.Return) and node.value)
        return written, _union(self._sources(value) for value in returned)

    def _assign(self, statements: Iterable[ast.AST]) -> bool:
        changed = False
        for node in statements:
            for target, value in _assignments(node):
                for name in (part for part in ast.walk(target) if isinstance(part, ast.Name)):
                    before = self._made_from.get(name.id, frozenset())
                    self._made_from[name.id] = before | self._sources(value)
                    changed |= self._made_from[name.id] != before
        return changed

    def _sources(self, node: ast.AST) -> Names:
        """The parameters that the value of an expression may have been made from, as an address."""
        if isinstance(node, ast.Name):
            return self._made_from.get(node.id, frozenset())
        if isinstance(node, ast.Call):
            function = self._jit_function(node)
            if function is not None:
                return self._given(function, node, _effects(function, self._callers)[1])
            if _is_any(node, _READS + _WRITES):
                return frozenset()
        return _union(self._sources(part) for part in ast.iter_child_nodes(node))

    def _written(self, call: ast.Call) -> Names:
        function = self._jit_function(call)
        if function is not None:
            return self._given(function, call, _effects(function, self._callers)[0])
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        everything = _union(self._sources(argument) for argument in arguments)
        if _is_any(call, _OPAQUE):
            return everything
        if _is_any(call, _WRITES):
            described = self._sources(call.func)
            return described or (self._sources(arguments[0]) if arguments else frozenset())
        called = self._called(call.func)
        is_known = called is not None and not inspect.isfunction(called)
        return frozenset() if is_known or isinstance(call.func, ast.Attribute) else everything

    def _jit_function(self, call: ast.Call) -> Callable[..., Any] | None:
        """The Python function under `@triton.jit` that is called; None if it is none."""
        function = getattr(self._called(call.func), "fn", None)
        return function if inspect.isfunction(function) else None

    def _given(self, function: Callable[..., Any], call: ast.Call, parameters: Names) -> Names:
        """The own parameters that `call` hands `function` as those `parameters`."""
        # What a starred argument stands for may go to any of the parameters from its place on.
        starred = next((i for i, node in enumerate(call.args) if isinstance(node, ast.Starred)), None)
        rest = ast.Tuple(call.args[starred:]) if starred is not None else None
        nodes = itertools.chain(call.args[:starred], itertools.repeat(rest) if rest else ())
        given: dict[str, ast.AST] = dict(zip(inspect.signature(function).parameters, nodes, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        return _union(self._sources(node) for name, node in given.items() if name in parameters)

    def _called(self, node: ast.expr) -> Any:
        """The object that an expression names; None if it is not known."""
        if isinstance(node, ast.Attribute):
            return getattr(self._called(node.value), node.attr, None)
        return self._names.get(node.id) if isinstance(node, ast.Name) else None


def _union(parts: Iterable[Names]) -> Names:
    return frozenset(name for part in parts for name in part)


def _is_any(call: ast.Call, names: tuple[str, ...]) -> bool:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return any(name in called for name in names)


def _assignments(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """The targets and values of an assignment."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AugAssign | ast.NamedExpr):
        return [(node.target, node.value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    if isinstance(node, ast.For):
        return [(node.target, node.iter)]
    return []

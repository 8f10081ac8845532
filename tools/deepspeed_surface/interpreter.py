"""Follows the configuration dictionary through DeepSpeed's source without running it.

What is known of a value is kept: constants, lists and dictionaries of them, functions and classes, and
which part of the configuration it is. Every branch is taken, and every loop over a constant is unrolled.
What cannot be told is `UNKNOWN`; a call is followed if it is handed a part of the configuration.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.deepspeed_surface.source import Module, Package
from tools.deepspeed_surface.values import (
    ANY_KEY,
    UNKNOWN,
    Definition,
    Instance,
    KeyPath,
    Method,
    Section,
    holds_section,
    join,
)

Local = dict[str, Any]
"""The variables of a function."""

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}

_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "pp_int": int,  # DeepSpeed's own, an int that prints with commas
    "int": lambda value: int(value) if isinstance(value, float) else value,
    **dict.fromkeys(("copy", "deepcopy", "dict", "list", "str", "bool"), lambda value: value),
}
"""Functions whose result is their argument, or nearly."""


class Interpreter:
    """Runs functions of one package on values that are partly known."""

    def __init__(self, root: Path) -> None:
        self.package = Package(root)
        self._stack: list[object] = []

    # What to do with a part of the configuration; for a subclass to fill in.

    def read(self, path: KeyPath, default: Any = UNKNOWN) -> None:
        """The key at `path` is looked up, and `default` taken if it is absent."""

    def refuse(self, path: KeyPath) -> None:
        """The presence of the key at `path` is an error."""

    def pass_on(self, path: KeyPath) -> None:
        """Every key of the section at `path` is looked at, whatever its name."""

    def unpack(self, model: Definition, value: Any) -> None:
        """A pydantic model is made from a section, or from a dictionary that holds sections."""

    def lookup(self, section: Section, name: str, default: Any = UNKNOWN) -> Section:
        """Read the key `name` of a section."""
        paths = frozenset((*path, name) for path in section.paths)
        for path in paths:
            self.read(path, default)
        return Section(paths)

    # Names and classes

    def find(self, module: Module, name: str) -> Any:
        """What a name stands for at the top of a module."""
        found = self.package.find(module, name)
        if found is None:
            return UNKNOWN
        module, node = found
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return Definition(module, node)
        if isinstance(node, ast.Module):
            return module
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            return UNKNOWN
        with_tuple = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        value = self._guarded((id(node), name), lambda: self.evaluate(node.value, module, {}))
        if not with_tuple:
            return value
        index = [ast.unparse(part) for part in node.targets[0].elts].index(name)
        return value[index] if isinstance(value, list) else UNKNOWN

    def bases(self, definition: Definition) -> Iterator[Definition]:
        """A class and those it inherits from, as far as they are in the package."""
        yield definition
        for base in definition.node.bases:
            found = self.find(definition.module, base.id) if isinstance(base, ast.Name) else UNKNOWN
            if isinstance(found, Definition):
                yield from self.bases(found)

    def is_model(self, definition: Definition) -> bool:
        """Whether a class is a pydantic model."""
        bases = (base for known in self.bases(definition) for base in known.node.bases)
        return any(isinstance(base, ast.Name) and base.id == "BaseModel" for base in bases)

    def method(self, definition: Definition, name: str) -> Definition | None:
        """A method of a class, its own or inherited."""
        for base in self.bases(definition):
            for node in base.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return Definition(base.module, node)
        return None

    # Calls

    def _guarded(self, place: object, action: Callable[[], Any]) -> Any:
        if place in self._stack or len(self._stack) > 60:
            return UNKNOWN
        self._stack.append(place)
        try:
            return action()
        finally:
            self._stack.pop()

    def call(self, function: Definition, args: list[Any], words: dict[str, Any]) -> Any:
        """Run through a function and give what it may return."""
        arguments, module = function.node.args, function.module
        names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
        defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
        for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                defaults[arg.arg] = value
        local = {name: self.evaluate(value, module, {}) for name, value in defaults.items()}
        local |= dict(zip(names, args, strict=False)) | words
        returned: list[Any] = []
        plain = repr([value for value in (*args, *words.values()) if not isinstance(value, Instance)])
        self._guarded((id(function.node), plain), lambda: self.run(function.node.body, module, local, returned))
        return join(*returned)

    def construct(self, definition: Definition, node: ast.Call, module: Module, local: Local) -> Any:
        """Make an object of a class of the package."""
        args, words = self._arguments(node, module, local)
        if self.is_model(definition):
            for word in node.keywords:
                if word.arg is None:
                    self.unpack(definition, self.evaluate(word.value, module, local))
            return UNKNOWN
        instance = Instance(definition)
        constructor = self.method(definition, "__init__")
        if constructor and holds_section([*args, *words.values()]):
            self.call(constructor, [instance, *args], words)
        return instance

    def _arguments(self, node: ast.Call, module: Module, local: Local) -> tuple[list[Any], dict[str, Any]]:
        args = [self.evaluate(arg, module, local) for arg in node.args if not isinstance(arg, ast.Starred)]
        words = {word.arg: self.evaluate(word.value, module, local) for word in node.keywords if word.arg}
        return args, words

    # Statements

    def run(self, body: list[ast.stmt], module: Module, local: Local, returned: list[Any]) -> None:
        """Run statements; `local` and `returned` are changed in place."""
        for node in body:
            handler = getattr(self, f"_run_{type(node).__name__.lower()}", self._run_other)
            handler(node, module, local, returned)

    def _run_other(self, node: ast.stmt, module: Module, local: Local, returned: list[Any]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.run([child], module, local, returned)
            elif isinstance(child, ast.ExceptHandler):
                self.run(child.body, module, local, returned)
            elif isinstance(child, ast.expr):
                self.evaluate(child, module, local)
            elif isinstance(child, ast.withitem):
                self.evaluate(child.context_expr, module, local)

    def _run_classdef(self, node: ast.ClassDef, module: Module, local: Local, returned: list[Any]) -> None:
        local[node.name] = Definition(module, node)

    def _run_functiondef(self, node: ast.FunctionDef, module: Module, local: Local, returned: list[Any]) -> None:
        local[node.name] = Definition(module, node)

    def _run_importfrom(self, node: ast.ImportFrom, module: Module, local: Local, returned: list[Any]) -> None:
        inner = Module(module.name, ast.Module([node], []), module.is_package)
        for name in inner.names:
            local[name] = self.find(inner, name)

    def _run_assign(self, node: ast.Assign, module: Module, local: Local, returned: list[Any]) -> None:
        value = self.evaluate(node.value, module, local)
        for target in node.targets:
            self.assign(target, value, module, local)

    def _run_annassign(self, node: ast.AnnAssign, module: Module, local: Local, returned: list[Any]) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, module, local), module, local)

    def _run_return(self, node: ast.Return, module: Module, local: Local, returned: list[Any]) -> None:
        returned.append(self.evaluate(node.value, module, local) if node.value else None)

    def _run_if(self, node: ast.If, module: Module, local: Local, returned: list[Any]) -> None:
        if isinstance(node.body[0], ast.Raise) and isinstance(node.test, ast.Compare):
            name = self.evaluate(node.test.left, module, local)
            section = self.evaluate(node.test.comparators[0], module, local)
            if isinstance(node.test.ops[0], ast.In) and isinstance(section, Section):
                for path in section.paths:
                    self.refuse((*path, str(name)))
                return
        self.evaluate(node.test, module, local)
        branches = [dict(local), dict(local)]
        for body, branch in zip((node.orelse, node.body), branches, strict=True):
            self.run(body, module, branch, returned)
        for name in branches[0] | branches[1]:
            local[name] = join(*(branch[name] for branch in branches if name in branch))

    def _run_for(self, node: ast.For, module: Module, local: Local, returned: list[Any]) -> None:
        for item in _items(self.evaluate(node.iter, module, local)):
            self.assign(node.target, item, module, local)
            self.run(node.body, module, local, returned)

    def assign(self, target: ast.expr, value: Any, module: Module, local: Local) -> None:
        """Store a value in a variable, an attribute or a dictionary."""
        if isinstance(target, ast.Tuple | ast.List):
            values = list(value) if isinstance(value, list | tuple) else []
            for part, item in zip(target.elts, [*values, *[UNKNOWN] * len(target.elts)], strict=False):
                self.assign(part, item, module, local)
        elif isinstance(target, ast.Name):
            local[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value, module, local)
            if isinstance(owner, Instance):
                before = owner.attributes.get(target.attr, UNKNOWN)
                owner.attributes[target.attr] = join(before, value)
        elif isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value, module, local)
            name = self.evaluate(target.slice, module, local)
            if isinstance(owner, dict) and isinstance(name, str):
                owner[name] = value

    # Expressions

    def evaluate(self, node: ast.expr, module: Module, local: Local) -> Any:
        """What is known of an expression's value."""
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node, module, local)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child, module, local)
        return UNKNOWN

    def _constant(self, node: ast.Constant, module: Module, local: Local) -> Any:
        return node.value

    def _name(self, node: ast.Name, module: Module, local: Local) -> Any:
        return local[node.id] if node.id in local else self.find(module, node.id)

    def _attribute(self, node: ast.Attribute, module: Module, local: Local) -> Any:
        if ast.unparse(node) == "sys.maxsize":
            return sys.maxsize
        owner = self.evaluate(node.value, module, local)
        if isinstance(owner, Module):
            return self.find(owner, node.attr)
        if isinstance(owner, Instance):
            if node.attr in owner.attributes:
                return owner.attributes[node.attr]
            found = self.method(owner.definition, node.attr)
            return Method(owner, found) if found else UNKNOWN
        if isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef):
            for member in owner.node.body:  # an enumeration's
                if isinstance(member, ast.Assign) and ast.unparse(member.targets[0]) == node.attr:
                    return self.evaluate(member.value, owner.module, {})
        return UNKNOWN

    def _subscript(self, node: ast.Subscript, module: Module, local: Local) -> Any:
        owner = self.evaluate(node.value, module, local)
        name = self.evaluate(node.slice, module, local)
        if isinstance(owner, Section) and isinstance(name, str):
            return self.lookup(owner, name)
        return owner.get(name, UNKNOWN) if isinstance(owner, dict) and isinstance(name, str) else UNKNOWN

    def _compare(self, node: ast.Compare, module: Module, local: Local) -> Any:
        left = self.evaluate(node.left, module, local)
        for symbol, right in zip(node.ops, node.comparators, strict=True):
            value = self.evaluate(right, module, local)
            if isinstance(symbol, ast.In | ast.NotIn) and isinstance(value, Section) and isinstance(left, str):
                self.lookup(value, left)
        return UNKNOWN

    def _boolop(self, node: ast.BoolOp, module: Module, local: Local) -> Any:
        return join(*(self.evaluate(value, module, local) for value in node.values))

    def _ifexp(self, node: ast.IfExp, module: Module, local: Local) -> Any:
        self.evaluate(node.test, module, local)
        return join(*(self.evaluate(part, module, local) for part in (node.orelse, node.body)))

    def _unaryop(self, node: ast.UnaryOp, module: Module, local: Local) -> Any:
        value = self.evaluate(node.operand, module, local)
        return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else UNKNOWN

    def _binop(self, node: ast.BinOp, module: Module, local: Local) -> Any:
        values = [self.evaluate(part, module, local) for part in (node.left, node.right)]
        operation = _OPERATIONS.get(type(node.op))
        if operation is None or not all(isinstance(value, int | float) for value in values):
            return UNKNOWN
        return operation(*values)

    def _dict(self, node: ast.Dict, module: Module, local: Local) -> Any:
        names = [self.evaluate(key, module, local) if key else UNKNOWN for key in node.keys]
        values = [self.evaluate(value, module, local) for value in node.values]
        return {name: value for name, value in zip(names, values, strict=True) if isinstance(name, str)}

    def _list(self, node: ast.List | ast.Tuple | ast.Set, module: Module, local: Local) -> Any:
        return [self.evaluate(item, module, local) for item in node.elts]

    _tuple = _set = _list

    def _dictcomp(self, node: ast.DictComp, module: Module, local: Local) -> Any:
        pairs = [
            (self.evaluate(node.key, module, inner), self.evaluate(node.value, module, inner))
            for inner in self._comprehension(node.generators, module, local)
        ]
        return {key: value for key, value in pairs if isinstance(key, str)}

    def _listcomp(self, node: ast.ListComp, module: Module, local: Local) -> Any:
        inside = self._comprehension(node.generators, module, local)
        return [self.evaluate(node.elt, module, inner) for inner in inside]

    _generatorexp = _setcomp = _listcomp

    def _comprehension(self, generators: list[ast.comprehension], module: Module, local: Local) -> Iterator[Local]:
        first, *rest = generators
        for item in _items(self.evaluate(first.iter, module, local)):
            inner = dict(local)
            self.assign(first.target, item, module, inner)
            for test in first.ifs:
                self.evaluate(test, module, inner)
            if rest:
                yield from self._comprehension(rest, module, inner)
            else:
                yield inner

    def _call(self, node: ast.Call, module: Module, local: Local) -> Any:
        if isinstance(node.func, ast.Attribute):
            owner = self.evaluate(node.func.value, module, local)
            if isinstance(owner, Section | dict):
                return self._call_of_dictionary(owner, node.func.attr, self._arguments(node, module, local)[0])
        conversion = _CONVERSIONS.get(ast.unparse(node.func).split(".")[-1])
        if conversion and node.args:
            return conversion(self.evaluate(node.args[0], module, local))
        function = self.evaluate(node.func, module, local)
        if isinstance(function, Definition) and isinstance(function.node, ast.ClassDef):
            return self.construct(function, node, module, local)
        args, words = self._arguments(node, module, local)
        if isinstance(function, Method):
            return self.call(function.definition, [function.instance, *args], words)
        if isinstance(function, Definition) and holds_section([*args, *words.values()]):
            return self.call(function, args, words)
        return UNKNOWN

    def _call_of_dictionary(self, owner: Section | dict[str, Any], name: str, args: list[Any]) -> Any:
        named = args and isinstance(args[0], str)
        if name in ("keys", "copy"):
            return owner
        if isinstance(owner, dict):
            if name == "items":
                return list(owner.items())
            return owner.get(args[0], join(*args[1:])) if name in ("get", "pop") and named else UNKNOWN
        if name in ("get", "pop", "setdefault") and named:
            return self.lookup(owner, args[0], *(args[1:] or ([None] if name == "get" else [])))
        if name in ("items", "values"):
            for path in owner.paths:
                self.pass_on(path)
            inner = Section(frozenset((*path, ANY_KEY) for path in owner.paths))
            return [(UNKNOWN, inner)] if name == "items" else [inner]
        return UNKNOWN


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | dict) else [UNKNOWN]

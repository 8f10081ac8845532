"""The state of a rank is on its context (`rehearsal/context.py`): no module, class or function keeps any."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.each import each
from tests.sources import PACKAGE, parsed

FILES = sorted((PACKAGE / "rehearsal").rglob("*.py"))
CONTAINERS = {"list", "dict", "set", "Counter", "defaultdict", "deque", "WeakSet", "WeakKeyDictionary"}
CHANGING = {
    *("append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "add"),
    *("discard", "sort", "appendleft", "popleft"),
}
CACHED = {
    *("call_sites.folder_of", "call_sites.is_in", "call_sites.is_of_script", "call_sites.tree_of"),
    *("call_order.group_name", "job._adapter", "packages.known_packages", "registry.registered"),
    *("roles.standing_for", "virtual_process_group._ranks", "triton_pointers._effects"),
    "deepspeed_bookkeeping.compiled",
}
"""Functions whose cached result depends on nothing but their arguments, files and code."""


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _is_empty_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        made = getattr(value.func, "id", getattr(value.func, "attr", ""))
        return made in CONTAINERS and not value.args and not value.keywords
    return value is not None and ast.unparse(value) in ("[]", "{}")


def _changed_by(node: ast.AST) -> str | None:
    """The name of the object that a statement or an expression changes."""
    held: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        held = node.func.value
    elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        held = node.value
    while isinstance(held, ast.Attribute | ast.Subscript):
        held = held.value
    return held.id if isinstance(held, ast.Name) else None


def state(tree: ast.Module) -> Iterator[str]:
    """Names of a module that hold state: changed in functions, or containers that begin empty."""
    made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {
        name.id
        for node in tree.body
        for target in _targets(node)
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body if isinstance(node, ast.Assign | ast.AnnAssign)):
        if _is_empty_container(node.value):
            yield from map(ast.unparse, _targets(node))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        arguments = function.args
        own = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        for node in ast.walk(function):
            own |= {name.id for target in _targets(node) for name in [target] if isinstance(name, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield from node.names
            if (name := _changed_by(node)) in made | {"cls"} and (name not in own or name == "cls"):
                yield str(name)


def cached(tree: ast.Module) -> Iterator[str]:
    """Functions that remember their results."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            used = {getattr(one, "attr", getattr(one, "id", "")) for one in node.decorator_list}
            if used & {"cache", "lru_cache", "cached_property"}:
                yield node.name


@each(FILES, by=lambda file: file.parent.name)
def test_no_module_keeps_state(file: Path) -> None:
    assert set(state(parsed(file))) <= ({"_current"} if file.stem == "context" else set())
    assert {f"{file.stem}.{name}" for name in cached(parsed(file))} <= CACHED


@pytest.mark.parametrize(
    "text",
    [
        "a = []",
        "class a:\n    b: set[int] = set()",
        "a = 0\ndef f():\n    global a\n    a = 1",
        "a = {1: 2}\ndef f():\n    a[1] = 2",
        "a = Rank()\ndef f():\n    a.time = 1",
        "a = Rank()\ndef f():\n    a.lines.append(1)",
        "def f():\n    f.calls = 1",
        "class A:\n    def f(self):\n        A.calls = 1",
        "class A:\n    @classmethod\n    def f(cls):\n        cls.calls = 1",
    ],
)
def test_state_is_seen(text: str) -> None:
    assert set(state(ast.parse(text)))


def test_objects_of_functions_are_no_state() -> None:
    body = "self.b = []\n        a.c = 1\n        d = {}\n        d[1] = 2"
    text = f"a = 1\nclass A:\n    def f(self, a):\n        {body}"
    assert not set(state(ast.parse(text)))
    assert list(cached(ast.parse("@functools.cache\ndef f():\n    return 1"))) == ["f"]

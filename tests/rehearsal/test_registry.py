"""Stand-ins are registered where they are written, and keep their state on the rank's context alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.each import each
from zerokit.rehearsal.stand_ins.context import RankContext
from zerokit.rehearsal.stand_ins.packages import known_packages
from zerokit.rehearsal.stand_ins.registry import registered

REHEARSAL = Path(__file__).resolve().parents[2] / "zerokit" / "rehearsal"
FILES = sorted(file for folder in ("stand_ins", "contrib") for file in (REHEARSAL / folder).rglob("*.py"))
_CHANGING = {
    *("append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "add"),
    *("discard", "sort"),
}


def _changed_globals(tree: ast.Module) -> set[str]:
    """Names of the module that its functions assign to, or change what they hold."""
    made = {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    changed: set[str] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                changed |= set(node.names)
            changed |= _changed_by(node)
    return changed & made


def _changed_by(node: ast.AST) -> set[str]:
    """The name of what an expression changes, if it has one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        held = node.func.value if node.func.attr in _CHANGING else None
    elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        held = node.value
    else:
        held = None
    return {held.id} if isinstance(held, ast.Name) else set()


@each(FILES, by=lambda file: file.parent.name)
def test_no_module_keeps_state(file: Path) -> None:
    allowed = {"_current"} if file.stem == "context" else set()
    assert _changed_globals(ast.parse(file.read_text(encoding="utf-8"))) <= allowed


def test_state_that_functions_change_is_seen() -> None:
    text = """
a, b, c, d, e = {}, [], set(), 0, Rank()
def f(x):
    global d
    a[1] = 2
    b.append(1)
    c.add(1)
    e.time = 1
    x.append(1)
"""
    assert _changed_globals(ast.parse(text)) == {"a", "b", "c", "d", "e"}


def test_what_install_functions_are_there_is_registered() -> None:
    own = {file.stem for file in FILES if "def install(setup: RankSetup)" in file.read_text("utf-8")}
    assert {one.module.rpartition(".")[2] for one in registered()} == own
    assert len(own) > 15
    assert all(one.replaces and one.install.__doc__ for one in registered())


def test_no_two_stand_ins_replace_the_same_name() -> None:
    names = [name for one in registered() for name in one.replaces]
    assert len(names) == len(set(names))


def test_each_package_has_its_modules_and_contrib_is_found_by_name_alone() -> None:
    for package in known_packages():
        for source in filter(None, package.modules.values()):
            assert (REHEARSAL / f"{source.replace('.', '/')}.py").is_file(), source
    rehearsal = [file for file in REHEARSAL.rglob("*.py") if "contrib" not in file.parts]
    assert not [file for file in rehearsal if "rehearsal.contrib." in file.read_text(encoding="utf-8")]
    for folder in (file.parent for file in FILES if file.match("contrib/*/__init__.py")):
        assert "\nOwner: " in (folder / "__init__.py").read_text(encoding="utf-8")


def test_a_context_has_one_object_of_each_class_and_gathers_their_warnings() -> None:
    class Notes:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def warnings(self) -> list[str]:
            return self.lines

    context = RankContext()
    context.state(Notes).lines.append("one")
    context.state(dict)["key"] = 1
    assert context.warnings() == ["one"]
    assert context.state(dict) == {"key": 1}
    with pytest.raises(KeyError):
        RankContext().state(dict)["key"]

"""DeepSpeed's source as syntax trees, with names resolved through imports. Nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(eq=False)
class Module:
    """One file: its syntax tree, and what binds each of its names."""

    name: str
    tree: ast.Module
    is_package: bool
    names: dict[str, list[ast.stmt]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    """Modules of which it imports every name."""

    def __post_init__(self) -> None:
        for node in _top_level(self.tree.body):
            self.bind(node)

    def bind(self, node: ast.stmt) -> None:
        """Note the names that a statement binds."""
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            self.stars.append(self.absolute(node))
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.asname or alias.name for alias in node.names]
        for name in names:
            self.names.setdefault(name, []).append(node)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The full name of the module that is imported from."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside functions and classes, those in the branches of `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top_level([*node.body, *node.orelse])
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)


class Package:
    """The modules below a folder, parsed when first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of that full name; None if it is not below the folder."""
        if name not in self._modules:
            base = self.root.joinpath(*name.split("."))
            file = next((f for f in (base / "__init__.py", base.with_suffix(".py")) if f.is_file()), None)
            self._modules[name] = file and Module(
                name, ast.parse(file.read_text(encoding="utf-8")), file.name == "__init__.py"
            )
        return self._modules[name]

    def find(self, module: Module, name: str, *, _seen: tuple[str, ...] = ()) -> tuple[Module, ast.AST] | None:
        """The statement that binds `name` as `module` sees it, with the module that statement stands in."""
        if module.name in _seen:
            return None
        _seen = (*_seen, module.name)
        for node in reversed(module.names.get(name, [])):
            if isinstance(node, ast.Import):
                return None
            if not isinstance(node, ast.ImportFrom):
                return module, node
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            origin = self.module(module.absolute(node))
            found = self.find(origin, original, _seen=_seen) if origin else None
            submodule = self.module(f"{module.absolute(node)}.{original}")
            if found or submodule:
                return found or (submodule, submodule.tree)
        for star in module.stars:
            origin = self.module(star)
            found = self.find(origin, name, _seen=_seen) if origin else None
            if found:
                return found
        return None

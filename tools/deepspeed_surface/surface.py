"""The ds_config keys that one release of DeepSpeed knows, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.deepspeed_surface.interpreter import Interpreter
from tools.deepspeed_surface.source import Module
from tools.deepspeed_surface.values import UNKNOWN, Definition, Instance, KeyPath, Section


@dataclass
class Key:
    """What a release does with one key."""

    default: Any = UNKNOWN
    other_name: str | None = None
    """A second spelling that the release reads as well."""
    annotation: str | None = None
    bounds: dict[str, Any] = field(default_factory=dict)
    """Of a number: `ge`, `gt`, `le` and `lt`, as pydantic names them."""
    deprecated: bool = False
    replaced_by: str | None = None


@dataclass
class Surface:
    """What a release reads of a ds_config."""

    keys: dict[KeyPath, Key] = field(default_factory=dict)
    strict: set[KeyPath] = field(default_factory=set)
    """Sections that refuse keys they do not know."""
    passed_on: set[KeyPath] = field(default_factory=set)
    """Sections of which every key is handed on."""
    refused: set[KeyPath] = field(default_factory=set)
    """Keys whose presence alone is an error."""


class _Reader(Interpreter):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.surface = Surface()

    def read(self, path: KeyPath, default: Any = UNKNOWN) -> None:
        key = self.surface.keys.setdefault(path, Key())
        if key.default is UNKNOWN and not isinstance(default, Section):
            key.default = default

    def refuse(self, path: KeyPath) -> None:
        self.surface.refused.add(path)

    def pass_on(self, path: KeyPath) -> None:
        self.surface.passed_on.add(path)

    def unpack(self, model: Definition, value: Any) -> None:
        if isinstance(value, Section):
            for path in value.paths:
                self._note_section(model, path)
        elif isinstance(value, dict):
            for name, annotation, _, module in self._fields(model):
                nested = self._model_in(module, annotation)
                if nested and name in value:
                    self.unpack(nested, value[name])

    def _note_section(self, model: Definition, path: KeyPath) -> None:
        if self._extra(model) == "forbid":
            self.surface.strict.add(path)
        for name, annotation, value, module in self._fields(model):
            key = self._key(module, annotation, value)
            alias, key.other_name = key.other_name, None
            if alias and alias != name:
                key.other_name = name
            place = (*path, alias or name)
            self.surface.keys[place] = key
            nested = self._model_in(module, annotation)
            if nested:
                self._note_section(nested, place)

    def _key(self, module: Module, annotation: ast.expr, value: ast.expr | None) -> Key:
        key = Key(annotation=ast.unparse(annotation))
        if value is None:
            return key
        if not (isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == "Field"):
            key.default = self.evaluate(value, module, {})
            return key
        words = {word.arg: word.value for word in value.keywords if word.arg}
        extra = words.get("json_schema_extra")
        if isinstance(extra, ast.Dict):
            names = [name.value for name in extra.keys if isinstance(name, ast.Constant)]
            words |= dict(zip(names, extra.values, strict=True))
        if value.args or "default" in words:
            key.default = self.evaluate(value.args[0] if value.args else words["default"], module, {})
        elif "default_factory" in words:
            key.default = self._made_by(words["default_factory"], module)
        known = {name: self.evaluate(node, module, {}) for name, node in words.items()}
        key.other_name = known.get("alias")
        key.bounds = {name: known[name] for name in ("ge", "gt", "le", "lt") if name in known}
        key.deprecated = known.get("deprecated") is True
        key.replaced_by = known.get("new_param") or None
        return key

    def _made_by(self, factory: ast.expr, module: Module) -> Any:
        if isinstance(factory, ast.Lambda):
            return self.evaluate(factory.body, module, {})
        if self._model_in(module, factory):
            return {}
        return {"list": [], "dict": {}}.get(ast.unparse(factory), UNKNOWN)

    def _extra(self, model: Definition) -> str:
        """What a model does with keys it does not know, in pydantic 1's spelling or in pydantic 2's."""
        for base in self.bases(model):
            for node in ast.walk(base.node):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "extra":
                    return str(ast.literal_eval(node.value))
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "ConfigDict":
                    for word in node.keywords:
                        if word.arg == "extra":
                            return str(ast.literal_eval(word.value))
        return "ignore"

    def _fields(self, model: Definition) -> Iterator[tuple[str, ast.expr, ast.expr | None, Module]]:
        for base in self.bases(model):
            for node in base.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    name, annotation = node.target.id, node.annotation
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    # pydantic 1 takes the type of such a field from its default
                    name, annotation = node.targets[0].id, ast.Name("Any")
                else:
                    continue
                if not name.startswith(("_", "model_config")):
                    yield name, annotation, node.value, base.module

    def _model_in(self, module: Module, annotation: ast.expr) -> Definition | None:
        for node in ast.walk(annotation):
            found = self.find(module, node.id) if isinstance(node, ast.Name) else None
            if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef) and self.is_model(found):
                return found
        return None


def read_surface(root: Path) -> Surface:
    """The ds_config keys of the DeepSpeed whose folder ``deepspeed`` lies in `root`."""
    reader = _Reader(root)
    module = reader.package.module("deepspeed.runtime.config")
    assert module is not None
    definition = reader.find(module, "DeepSpeedConfig")
    constructor = reader.method(definition, "__init__")
    reader.call(constructor, [Instance(definition), Section(frozenset({()}))], {})
    return reader.surface

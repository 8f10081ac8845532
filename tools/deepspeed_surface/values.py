"""What the interpreter knows of a value."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from tools.deepspeed_surface.source import Module

KeyPath = tuple[str, ...]
ANY_KEY = "*"
"""Stands for a key that users choose."""


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


@dataclass(frozen=True)
class Section:
    """A part of the configuration; one of several if branches differ."""

    paths: frozenset[KeyPath]


@dataclass(frozen=True)
class Definition:
    """A function or class, with the module it stands in."""

    module: Module
    node: ast.FunctionDef | ast.ClassDef


@dataclass(eq=False)
class Instance:
    """An object of a class that is no pydantic model."""

    definition: Definition
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method of an object."""

    instance: Instance
    definition: Definition


def join(*values: Any) -> Any:
    """One value for a place where any of `values` may stand."""
    paths = [value.paths for value in values if isinstance(value, Section)]
    if paths:
        return Section(frozenset().union(*paths))
    for kind in (Instance, dict, object):
        for value in reversed(values):
            if isinstance(value, kind) and value is not UNKNOWN and (value != {} or kind is object):
                return value
    return UNKNOWN


def holds_section(value: Any) -> bool:
    """Whether something of the configuration can be reached through `value`."""
    if isinstance(value, dict):
        return any(map(holds_section, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_section, value))
    return isinstance(value, Section | Instance)

"""What each key means: the docstring beneath its field, with its stages and its first release.

The one place that makes these texts; the JSON Schema and ``zerokit explain`` print them. The docstrings are
read from the source when they are needed, so that checking a config does not pay for them.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from zerokit.config.base import ALL_STAGES, Section, in_stages
from zerokit.config.conditions import Acts


@cache
def _docstrings_of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Class -> field -> the docstring beneath it."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found: dict[str, dict[str, str]] = {node.name: {} for node in classes}
    for node in classes:
        for field, below in zip(node.body, node.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[node.name][field.target.id] = " ".join(str(below.value.value).split())
    return found


def docstring(model: type[Section], name: str) -> str:
    """The text of a field: beneath it, or beneath that of the class it was inherited from."""
    text = model.model_fields[name].description
    if text is not None:
        return text
    for base in model.__mro__:
        found = _docstrings_of_module(base.__module__).get(base.__name__, {}) if _is_ours(base) else {}
        if name in found:
            return found[name]
    return ""


def _is_ours(base: type) -> bool:
    return issubclass(base, Section) and base is not Section


def description(model: type[Section], name: str) -> str:
    """The whole description of a key: meaning, unit, default, stages, first release."""
    field = model.model_fields[name]
    parts = [docstring(model, name)]
    if "efault" not in parts[0] and not field.is_required() and field.default_factory is None:
        parts.append(f"Default {shown(field.default)}.")
    acts = next((item for item in field.metadata if isinstance(item, Acts)), None)
    if acts is not None:
        parts += _in_words(acts)
    return " ".join(part for part in parts if part)


def section_description(model: type[Section]) -> str:
    """The docstring of a section, in one line."""
    return " ".join((inspect.getdoc(model) or "").split())


def shown(value: Any) -> str:
    """A default as a person would write it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:,}".replace(",", "_")
    return "none" if value is None else json.dumps(value)


def _in_words(acts: Acts) -> list[str]:
    words = []
    if acts.stages != ALL_STAGES:
        words.append(f"in {in_stages(acts.stages)}")
    if acts.when is not None and acts.when.words:
        words.append(acts.when.words)
    sentences = [f"Acts {' '.join(words)}."] if words else []
    if acts.when is not None and acts.when.words is None:
        sentences.append("DeepSpeed does not use it.")
    if acts.since is not None:
        sentences.append(f"Since DeepSpeed {acts.since}.")
    return sentences

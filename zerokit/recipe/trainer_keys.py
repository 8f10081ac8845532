"""The fields of transformers' TrainingArguments, read without importing them."""

import ast
import functools
import operator
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from zerokit.tables import table_of

_TABLES: Mapping[str, Any] = table_of(__file__)
AT_LEAST: Mapping[str, float] = _TABLES["at_least"]
"""Values below these break the run only after the model is loaded."""
BELOW: Mapping[str, float] = _TABLES["below"]
OWNED: Mapping[str, str] = _TABLES["owned"]
"""Arguments with a section of their own, or that contradict what zerokit runs, and what to do instead."""

WITHOUT_EFFECT: Mapping[str, tuple[Any, str]] = {
    name: (value, hint) for name, (value, hint) in _TABLES["without_effect"].items()
}
"""Arguments that change nothing here: the value that is what zerokit does anyway, and what to do instead."""


def is_free(name: str) -> bool:
    """Whether a recipe may set an argument, and it changes something."""
    return name not in OWNED and name not in WITHOUT_EFFECT


NEEDS: Mapping[str, tuple[str, ...]] = {name: tuple(others) for name, others in _TABLES["needs"].items()}
"""Arguments that change nothing without one of others."""
_OFF = (None, False, 0, "no")
_ON_BY_DEFAULT = ("save_strategy",)


def is_on(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an argument is set, or on by default, and not off: ``no``, 0 or false."""
    value = arguments.get(name)
    if value is None:
        return name in _ON_BY_DEFAULT
    return getattr(value, "value", value) not in _OFF


_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "None": None}


@functools.cache
def installed_types() -> Mapping[str, Any] | None:
    """The fields of the installed TrainingArguments from their source, which imports nothing.

    Returns:
        None where transformers is not installed. Names of classes that a text chooses from are ``str``.
    """
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).with_name("training_args.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    arguments = next(node for node in classes if node.name == "TrainingArguments")
    return {
        field.target.id: _type(field.annotation)
        for field in arguments.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _type(annotation: ast.expr) -> Any:
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            return functools.reduce(operator.or_, (_type(left), _type(right)))
        # As older releases write them.
        case ast.Subscript(ast.Name("Optional"), kind):
            return _type(kind) | None
        case ast.Subscript(ast.Name("Union"), ast.Tuple(kinds)):
            return functools.reduce(operator.or_, map(_type, kinds))
        case ast.Subscript(ast.Name("Literal"), ast.Constant(value)):
            return Literal[value]
        case ast.Subscript(ast.Name(name)) | ast.Name(name):
            return _TYPES.get(name, str)
    return None

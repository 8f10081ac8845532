"""The JSON that a page shows: of a plan, an estimate, a rehearsal or a finished run.

``documents.json`` has the keys that a page needs, by kind of document. Other keys are ignored, so that files
of other releases can be read. A name with ``?`` may be absent or null. ``*`` stands for any name, and ``...``
adds the keys of another kind.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import from_json

from zerokit.documents import dotted, read_bytes
from zerokit.errors import DocumentError
from zerokit.reporting.verdicts import HostFit, Verdict
from zerokit.tables import table_of
from zerokit.validation import wrong_value

_MAX_BYTES = 64 << 20
_LONGEST = 600
_MOST_ITEMS = 2000
_LARGEST = 1e18
_HINT = "Name plan.json, run.json, or the JSON of 'zerokit estimate' or 'zerokit rehearse'"
_LONGEST_COMMAND = 20_000
_Text = Annotated[str, AfterValidator(lambda text: text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")]
_TYPES: dict[str, Any] = {
    "text": _Text,
    "command": Annotated[str, Field(max_length=_LONGEST_COMMAND)],
    "word": int | _Text,
    "count": Annotated[int, Field(ge=0, le=_LARGEST)],
    "amount": Annotated[float, Field(ge=0, le=_LARGEST)],
    "number": Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)],
    "flag": bool,
    "any": dict[str, Any],
    "verdict": Verdict,
    "host": HostFit,
}
_KINDS = ("plan", "sweep", "estimate", "rehearsal", "run")
_SHAPES: dict[str, Any] = table_of(__file__)


def read_document(file: Path) -> Any:
    """The content of a JSON file. DocumentError if the file cannot be read, or is not JSON."""
    try:
        return from_json(read_bytes(file, max_bytes=_MAX_BYTES), allow_inf_nan=False)
    except ValueError as error:
        raise DocumentError(f"is not JSON: {error}", where=file, hint=_HINT) from None


def parse(data: Any, where: str) -> tuple[str, Any]:
    """The kind of a document, and a model with the keys that the page needs.

    Raises:
        DocumentError: it is none of the kinds, or a value is missing or wrong.
    """
    found = data.keys() if isinstance(data, dict) else set()
    kind = next((kind for kind in _KINDS if found >= set(_SHAPES[kind]["_keys"])), None)
    if kind is None:
        raise DocumentError("zerokit makes no page of this file", where=where, hint=_HINT)
    try:
        return kind, _model(kind).model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = dotted(first["loc"])
        if first["type"] == "missing":
            raise DocumentError(f"has no key '{key}'", where=where, hint=_HINT) from None
        message, hint = wrong_value([first], key)
        raise DocumentError(message, where=f"{where} ({key})", hint=hint) from None


@cache
def _model(name: str) -> type[BaseModel]:
    return _model_of(_SHAPES[name], name)


def _model_of(shape: dict[str, Any], name: str) -> type[BaseModel]:
    shape = _SHAPES.get(shape.get("...", ""), {}) | shape
    fields: dict[str, Any] = {}
    for key, kind in shape.items():
        if key[0] not in "_.":
            of = _type(kind, key)
            fields[key.removesuffix("?")] = (of | None, None) if key.endswith("?") else (of, ...)
    return create_model(name, __config__=ConfigDict(frozen=True, protected_namespaces=()), **fields)


def _type(kind: Any, name: str) -> Any:
    if isinstance(kind, list):
        return Annotated[list[_type(kind[0], name)], Field(max_length=_MOST_ITEMS)]  # type: ignore[misc]
    if isinstance(kind, dict):
        return dict[_Text, _type(kind["*"], name)] if "*" in kind else _model_of(kind, name)  # type: ignore[misc]
    return _TYPES[kind] if kind in _TYPES else _model(kind)

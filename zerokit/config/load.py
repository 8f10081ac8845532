"""Reading a ds_config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerokit.config.explain import explain
from zerokit.config.problem import Problem
from zerokit.config.root import DeepSpeedConfig
from zerokit.documents import Document, read_document
from zerokit.errors import ConfigError


def load_ds_config(source: str | Path | Mapping[str, Any]) -> DeepSpeedConfig:
    """Read a ds_config from a file or from data.

    Each section is checked by itself; see :func:`zerokit.config.cross_check` for what spans sections.

    Raises:
        DocumentError: the file cannot be read.
        ConfigError: a key or value is not valid; names the first one and how many more there are.
    """
    document = Document(_plain(source), "ds_config") if isinstance(source, Mapping) else read_document(source)
    try:
        return DeepSpeedConfig.model_validate(document.data)
    except ValidationError as error:
        raise _as_error(explain(error, document), document) from None


def check_ds_config(document: Document) -> list[Problem]:
    """Everything that is wrong inside the sections of a ds_config, in the order of its lines."""
    try:
        DeepSpeedConfig.model_validate(_plain(document.data))
    except ValidationError as error:
        return explain(error, document)
    return []


def _as_error(problems: list[Problem], document: Document) -> ConfigError:
    """The first of `problems` as an exception that says how many more there are."""
    first, *others = problems
    more = f" (and {len(others)} more)" if others else ""
    return ConfigError(first.message + more, where=document.where(first.path), hint=first.hint)


def _plain(data: Any) -> Any:
    """`data` with any kind of mapping or tuple made a dict or list, as a JSON reader would give it."""
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    return data

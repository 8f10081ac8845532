"""Finds a model's config.json and counts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.documents import MAX_BYTES, dotted, is_file, read_bytes, read_document
from zerokit.errors import DocumentError, ModelError
from zerokit.hub import is_hub_id
from zerokit.models import catalogue, hub_config
from zerokit.models.count import count
from zerokit.models.keys import NotCountedError
from zerokit.models.shape import ModelShape
from zerokit.units import is_like_count


@dataclass(frozen=True)
class _Config:
    data: Mapping[str, Any]
    where: Callable[[tuple[str, ...]], str]
    name: str
    stored: ModelShape | None = None
    """The shape of a catalogue model whose family has no code."""


def load_model_shape(
    model: str | Path | Mapping[str, Any],
    *,
    revision: str | None = None,
    architecture: str | None = None,
    allow_network: bool = True,
    allow_torch: bool = True,
) -> ModelShape:
    """Load the shape of a model; neither weights nor torch are needed if its family has code.

    Args:
        model: a folder, a config.json, its parsed keys, a name or Hub id of the catalogue, or another Hub id,
            which is looked up in the local cache first.
        revision: branch, tag or commit of a Hub model; the catalogue has none, so it is skipped.
        architecture: transformers' class, such as ``LlamaForSequenceClassification``; None: the class in the
            config.
        allow_network: download the config.json of a Hub model that is not on this machine.
        allow_torch: build models of families without code on torch's meta device, which takes seconds.

    Raises:
        ModelError: there is no such model, the file is no config.json, a size is invalid, or the model type
            is unknown.
    """
    if isinstance(model, Mapping):
        config = _Config(model, dotted_place, "config")
    else:
        config = _find(str(model), revision=revision, allow_network=allow_network)
    if config.stored is not None and architecture in (None, config.stored.architecture):
        return config.stored
    try:
        return count(config.data, config.where, name=config.name, architecture=architecture)
    except NotCountedError as unknown:
        from zerokit.models.on_meta import count_on_meta, meta_is_possible

        if allow_torch and meta_is_possible():
            return count_on_meta(config.data, config.where, name=config.name, architecture=architecture)
        raise ModelError(
            f"zerokit has no code to count {unknown}",
            where=config.where(()),
            hint="Install torch and transformers: zerokit then builds such a model on torch's meta device"
            if allow_torch
            else "Commands that may import torch build it on torch's meta device",
        ) from None


def model_config(model: str) -> Mapping[str, Any]:
    """The keys of a model's config.json, found as :func:`load_model_shape` finds it. Raises ModelError."""
    return _find(model, revision=None, allow_network=False).data


def dotted_place(path: tuple[str, ...]) -> str:
    """The place of a key in parsed keys."""
    return f"config.json ({dotted(path)})" if path else "config.json"


def _find(name: str, *, revision: str | None, allow_network: bool) -> _Config:
    path = _path(name)
    if path is not None and path.is_dir():
        return _in_folder(path, name)
    if path is not None and path.suffix.lower() in (".json", ".yaml", ".yml"):
        return _read(path, name)
    known = catalogue.find(name) if revision is None else None
    if known is not None:
        stored = catalogue.stored_shape(known.id)
        return _Config(known.config, _place_in_catalogue(known.id), known.id, stored)
    if path is not None and path.is_file():
        return _read(path, name)
    if is_like_count(name):
        raise ModelError(
            f"'{name}' looks like a number of parameters, which says nothing of layers",
            where="model",
            hint="Name a model of that size, such as one that zerokit models lists",
        )
    if not is_hub_id(name):
        raise ModelError(
            f"no such folder or config.json: '{name}'" if name.strip() else "no model is given",
            where="model",
            hint="Name a folder, a config.json, a Hub id or what zerokit models lists",
        )
    file = hub_config.cached_config(name, revision)
    if file is None and allow_network and not _is_misspelled(name):
        file = hub_config.download_config(name, revision)
    if file is None:
        raise _not_found(name)
    return _read(file, name)


def _path(name: str) -> Path | None:
    """`name` as a path, or None if it cannot be a path."""
    try:
        path = Path(name).expanduser()
        path.exists()  # refuses names that no file system takes
    except (OSError, ValueError, RuntimeError):
        return None
    return path if name.strip() else None


def _is_misspelled(name: str) -> bool:
    """Whether it is almost a name of the catalogue, so that the Hub need not be asked."""
    return "/" not in name and catalogue.closest(name) is not None


def _not_found(name: str) -> ModelError:
    close = catalogue.closest(name)
    return ModelError(
        f"'{name}' is neither a folder here, nor in the catalogue, nor in the local Hugging Face cache",
        where="model",
        hint=f"Did you mean '{close}'?"
        if close
        else "Name a folder with its config.json, or what zerokit models lists",
    )


def _in_folder(folder: Path, name: str) -> _Config:
    file = folder / "config.json"
    if is_file(file):
        return _read(file, name, folder)
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"'{name}' is a peft adapter, without a config.json", where=name, hint="Name the model that it adapts"
        )
    raise ModelError(f"'{name}' has no config.json", where=name, hint="Name a model's folder")


def _read(file: Path, name: str, folder: Path | None = None) -> _Config:
    try:
        document = read_document(file, folder=folder)
    except DocumentError as error:
        data = _read_as_transformers_does(file, folder)
        if not isinstance(data, dict):
            raise ModelError(error.message, where=error.where, hint=error.hint) from None
        return _Config(data, lambda path: f"{file} ({dotted(path)})" if path else str(file), name)
    if not isinstance(document.data, dict):
        raise ModelError("is not a model's config.json", where=file, hint="It holds no section {...}")
    return _Config(document.data, document.where, name)


def _read_as_transformers_does(file: Path, folder: Path | None) -> Any:
    """Parse JSON like transformers: with NaN, Infinity, and the last of duplicate keys."""
    try:
        content = read_bytes(file, folder=folder)
        return json.loads(content) if len(content) <= MAX_BYTES else None
    except (DocumentError, ValueError, RecursionError):
        return None


def _place_in_catalogue(hub_id: str) -> Callable[[tuple[str, ...]], str]:
    return lambda path: f"{hub_id} ({dotted(path)})" if path else hub_id

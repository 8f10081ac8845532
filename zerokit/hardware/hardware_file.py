"""A card that the catalogue does not have, or figures other than its own, from a file.

    {"gpu": {"name": "X1", "nominal_gb": 64, "bandwidth_gb_s": 3000, "tflops": {"bf16": 500, "fp32": 50},
             "link": {"name": "NVLink4 NVSwitch", "gb_s": 450}},
     "figures": {"launch": {"seconds": {"kernel": 8e-6}}}}

``gpu`` is a card as in `gpus.json`, or the name of one; ``figures`` are parts of `prices/figures.json`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.documents import Document, KeyPath, read_document
from zerokit.errors import DocumentError, did_you_mean
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.hardware.prices.figures import figures

_BOUNDS = {
    "bandwidth_gb_s": (5, 100_000),
    "gb_s": (0.1, 10_000),
    "nominal_gb": (1, 10_000),
    "memory_mib": (1024, 10_000_000),
    "multiprocessors": (1, 100_000),
    "tflops": (0.01, 100_000),
}
"""Of cards that there may be: a figure outside was written in another unit."""
_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")
_UNITS = {"bandwidth_gb_s": "10^9 bytes per second", "gb_s": "10^9 bytes per second", "nominal_gb": "GB"} | {
    "tflops": "10^12 operations per second",
    "memory_mib": "MiB",
    "multiprocessors": "units",
}


@dataclass(frozen=True)
class Hardware:
    """What a file says."""

    gpu: Gpu
    figures: Mapping[str, Any] = field(hash=False)
    """All of `figures.json`, with the file's changes."""


def read_hardware(path: str | Path) -> Hardware:
    """Read a file of hardware, JSON or YAML.

    Raises:
        DocumentError: it cannot be read, has a key that there is not, or a figure in another unit.
        ZerokitError: there is no such card.
    """
    document = read_document(path)
    data = document.data
    if not isinstance(data, dict) or "gpu" not in data:
        raise DocumentError(
            "no card is told", where=document.where(), hint='Begin with {"gpu": {"name": ...}}'
        )
    for key in data.keys() - {"gpu", "figures"}:
        raise DocumentError(
            f"there is no key '{key}'",
            where=document.where((key,)),
            hint=did_you_mean(key, ("gpu", "figures")),
        )
    gpu = find_gpu(data["gpu"]) if isinstance(data["gpu"], str) else _gpu(document)
    changed = copy.deepcopy(figures())
    _change(changed, data.get("figures", {}), ("figures",), document, gpu.name)
    return Hardware(gpu, changed)


def _gpu(document: Document) -> Gpu:
    from pydantic import TypeAdapter, ValidationError

    try:
        gpu = TypeAdapter(Gpu).validate_python(document.data["gpu"])
    except ValidationError as error:
        first = error.errors()[0]
        path: KeyPath = ("gpu", *first["loc"])
        message = "there is no such key" if first["type"] == "unexpected_keyword_argument" else first["msg"]
        raise DocumentError(message, where=document.where(path), hint="Write it as in gpus.json") from None
    _check_units(document.data["gpu"], ("gpu",), document)
    for dtype in gpu.tflops.keys() - set(_DTYPES):
        where, hint = document.where(("gpu", "tflops", dtype)), did_you_mean(dtype, _DTYPES)
        raise DocumentError(f"there is no dtype '{dtype}'", where=where, hint=hint)
    if gpu.memory_mib is None and not gpu.nominal_gb:
        raise DocumentError("its memory is missing", where=document.where(("gpu",)), hint='Give "nominal_gb"')
    return gpu


def _check_units(data: Mapping[str, Any], path: KeyPath, document: Document) -> None:
    for key, value in data.items():
        if isinstance(value, dict):
            _check_units(value, (*path, key), document)
        name = "tflops" if path[-1] == "tflops" else key
        if name in _BOUNDS and isinstance(value, int | float):
            low, high = _BOUNDS[name]
            if not low <= value <= high:
                raise DocumentError(
                    f"{value:g} is out of all cards' reach",
                    where=document.where((*path, key)),
                    hint=f"Give it in {_UNITS[name]}: {low:g} to {high:,}",
                )


def _change(target: dict[str, Any], changes: Any, path: KeyPath, document: Document, gpu: str) -> None:
    """Put a file's figures in the place of those that there are."""
    if not isinstance(changes, dict):
        raise DocumentError("figures stand in objects", where=document.where(path), hint="As in figures.json")
    for key, value in changes.items():
        here = (*path, key)
        if key not in target and not (path[-1] == "cards" and key == gpu):
            raise DocumentError(
                f"there is no figure '{key}'",
                where=document.where(here),
                hint=did_you_mean(key, tuple(target)),
            )
        known = target.get(key)
        if isinstance(known, dict):
            _change(known, value, here, document, gpu)
        elif key in target:
            target[key] = _like(known, value, here, document)
        else:
            target[key] = _of_own_card(target, value, here, document)


def _of_own_card(others: Mapping[str, Any], value: Any, path: KeyPath, document: Document) -> Any:
    """A figure, or several, as other cards have there."""
    if not isinstance(next(iter(others.values())), dict):
        return _like(1.0, value, path, document)
    names = {name for one in others.values() for name in one} - {"source"}
    if not isinstance(value, dict):
        raise DocumentError(
            "figures stand in objects", where=document.where(path), hint=f"Of {sorted(names)}"
        )
    for name in value.keys() - names:
        hint = did_you_mean(name, sorted(names))
        raise DocumentError(f"there is no figure '{name}'", where=document.where((*path, name)), hint=hint)
    return {name: _like(1.0, one, (*path, name), document) for name, one in value.items()}


def _like(known: Any, value: Any, path: KeyPath, document: Document) -> Any:
    """`value`, if it has the form of what is known: a number above 0, a text, or a list of as many."""
    where = document.where(path)
    if isinstance(known, int | float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise DocumentError(
                f"{value!r} is no figure", where=where, hint=f"Give a number above 0, such as {known}"
            )
        if value > 1 and any("share" in str(key) for key in path):
            raise DocumentError(f"{value!r} is no share", where=where, hint="Give 1 at most, for all of it")
    elif isinstance(known, list) and isinstance(value, list) and len(known) == len(value):
        return [_like(*both, path, document) for both in zip(known, value, strict=True)]
    elif not isinstance(known, str) or not isinstance(value, str):
        hint = f"It is written like {json.dumps(known)[:80]}"
        raise DocumentError("this is not the figure's form", where=where, hint=hint)
    return value

"""Well-known models, whose config.json is on board and needs no network.

`catalogue.json` holds of each its Hub id, other Hub ids of the same shape, further short names, and those
keys of its public config.json that bear on shape and type.

Attention windows were held against public copies of the files of Phi-3, Phi-4 and Gemma 3; those of
Mistral 7B v0.1 and Command R7B are the defaults of their classes, StarCoder2's is in transformers' docs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zerokit.errors import nearest

_FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    id: str
    """Its Hub id."""
    also: tuple[str, ...]
    """Other Hub ids of the same shape: its instruction-tuned sisters, its earlier names."""
    names: tuple[str, ...]
    """Short names that its Hub ids do not give."""
    config: Mapping[str, Any]
    """The keys of its config.json."""

    @property
    def short_names(self) -> tuple[str, ...]:
        """Its names without an owner, lower case."""
        of_ids = (one.rpartition("/")[2].lower() for one in (self.id, *self.also))
        return tuple(dict.fromkeys((*self.names, *of_ids)))


@cache
def entries() -> tuple[Entry, ...]:
    """All models of the catalogue, in the order of the file: by family, then by size."""
    return tuple(
        Entry(
            id=entry["id"],
            also=tuple(entry.get("also", ())),
            names=tuple(entry.get("names", ())),
            config=entry["config"],
        )
        for entry in json.loads(_FILE.read_text(encoding="utf-8"))
    )


def find(name: str) -> Entry | None:
    """The model of that name, or None.

    A Hub id is met in any case of letters; a short name also with ``_``, blanks or nothing for its hyphens.
    """
    if "/" in name:
        return _by_id().get(name.lower())
    return _by_short_name().get(_folded(name))


def closest(name: str) -> str | None:
    """The name that `name` was most likely meant to be, or None if nothing is close."""
    if "/" in name:
        return nearest(name, [one for entry in entries() for one in (entry.id, *entry.also)])
    return nearest(name, [short for entry in entries() for short in entry.short_names])


def hub_id(name: str) -> str | None:
    """The Hub id of the model that a short name, or one that is nearly one, means; None for other names."""
    if "/" in name:
        return None
    short = name if find(name) is not None else closest(name) or ""
    entry = find(short)
    if entry is None:
        return None
    ids = (one for one in (entry.id, *entry.also) if _folded(one.rpartition("/")[2]) == _folded(short))
    return next(ids, entry.id)


@cache
def _by_id() -> dict[str, Entry]:
    return {one.lower(): entry for entry in entries() for one in (entry.id, *entry.also)}


@cache
def _by_short_name() -> dict[str, Entry]:
    return {_folded(short): entry for entry in entries() for short in entry.short_names}


def _folded(name: str) -> str:
    """Dots stay: opt-1.3b is not opt-13b."""
    return name.lower().translate(str.maketrans("", "", "-_ "))

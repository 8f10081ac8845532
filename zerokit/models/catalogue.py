"""Well-known models that need no network.

`catalogue.json` has their Hub ids, other Hub ids of the same shape, more short names, and the keys of
config.json that determine shape and type. `shapes.json` has the parameters of models of a type
that `model_types.json` lacks; `python -m tools.model_shapes` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from zerokit.errors import nearest
from zerokit.models.shape import Experts, ModelShape
from zerokit.models.tensors import Tensor
from zerokit.spelling import NEAR
from zerokit.tables import table_of

SHAPES_FILE = Path(__file__).with_name("shapes.json")


@dataclass(frozen=True)
class Entry:
    id: str
    """Its Hub id."""
    config: Mapping[str, Any]
    """The keys of its config.json."""
    also: Sequence[str] = ()
    """Other Hub ids of the same shape: instruction-tuned variants, former names."""
    names: Sequence[str] = ()
    """Short names besides those in its Hub ids."""

    @property
    def short_names(self) -> tuple[str, ...]:
        """Its names without an owner, in lower case."""
        of_ids = (one.rpartition("/")[2].lower() for one in (self.id, *self.also))
        return tuple(dict.fromkeys((*self.names, *of_ids)))


@cache
def entries() -> tuple[Entry, ...]:
    """All models of the catalogue in file order: by family, then by size."""
    return tuple(Entry(**row) for row in table_of(__file__))


def stored_shape(hub_id: str) -> ModelShape | None:
    """Return the shape of a model whose family has no code; None for all others."""
    values = _stored_shapes().get(hub_id)
    entry = find(hub_id)
    if values is None or entry is None:
        return None
    tensors = tuple(Tensor(name, tuple(shape), kind, count) for name, kind, count, *shape in values["tensors"])
    known = {**values, "tensors": tensors}
    if "experts" in values:
        known["experts"] = Experts(**values["experts"])
    return ModelShape(name=hub_id, model_type=entry.config["model_type"], config=entry.config, **known)


def find(name: str) -> Entry | None:
    """The model of a name, or None.

    Hub ids match in any case; in short names ``_``, blanks or nothing may replace hyphens.
    """
    if "/" in name:
        return _by_id().get(name.lower())
    return _by_short_name().get(_folded(name))


def closest(name: str) -> str | None:
    """The most similar name, or None."""
    each = ((entry.id, *entry.also) if "/" in name else entry.short_names for entry in entries())
    return nearest(name, chain.from_iterable(each), NEAR)


def hub_id(name: str) -> str | None:
    """The Hub id of a short name, also of a misspelled one; None for other names."""
    if "/" in name:
        return None
    short = name if find(name) is not None else closest(name) or ""
    entry = find(short)
    if entry is None:
        return None
    ids = (one for one in (entry.id, *entry.also) if _folded(one.rpartition("/")[2]) == _folded(short))
    return next(ids, entry.id)


@cache
def _stored_shapes() -> dict[str, Any]:
    return dict(json.loads(SHAPES_FILE.read_text(encoding="utf-8")))


@cache
def _by_id() -> dict[str, Entry]:
    return {one.lower(): entry for entry in entries() for one in (entry.id, *entry.also)}


@cache
def _by_short_name() -> dict[str, Entry]:
    return {_folded(short): entry for entry in entries() for short in entry.short_names}


def _folded(name: str) -> str:
    """Dots stay: opt-1.3b is not opt-13b."""
    return name.lower().translate(str.maketrans("", "", "-_ "))

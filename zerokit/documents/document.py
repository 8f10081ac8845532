"""Data that remembers where each part of it was written."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zerokit.documents.paths import KeyPath, dotted


class Span(NamedTuple):
    """Where an entry stands in the text, as offsets from 0."""

    start: int
    """Of the key, with its quotes; in a list, of the item."""
    value: int
    """Of the value."""
    end: int
    """After the value."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A place at which a text is not JSON, though DeepSpeed reads it."""

    kind: str
    """What it is: `comment`, `trailing comma`, `missing comma`, `bare key`, `bare value`, `single quotes`,
    `byte-order mark` or `no braces`."""
    message: str
    """What is wrong, without a full stop."""
    hint: str
    line: int
    column: int
    start: int
    """Offset in the text, from 0."""
    end: int
    """Offset after it."""
    meant: str | None = None
    """Of a value without quotes such as `True`: how JSON spells it."""


@dataclass(frozen=True)
class Document:
    """Parsed data that remembers where each part of it was written."""

    data: Any
    name: str
    """The file's path as the user gave it, or what the text came from."""
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column (both from 1) of each key path: of the key in a mapping, of the item in a list, of
    the whole for ``()``."""
    text: str | None = None
    """What was parsed, if it was JSON."""
    spans: dict[KeyPath, Span] = field(default_factory=dict)
    """Where each entry stands in `text`; ``()`` is the whole value."""
    departures: tuple[Departure, ...] = ()
    """Where `text` is not JSON, in its order; only a lenient reader lets any through."""

    @property
    def is_yaml(self) -> bool:
        """Whether the data was read from YAML, rather than from JSON or from nowhere."""
        return self.text is None and bool(self.positions)

    def where(self, path: KeyPath = ()) -> str:
        """``"file.json:12 (zero_optimization.stage)"``, as exact as is known."""
        line = self.line(path)
        place = f"{self.name}:{line}" if line is not None else self.name
        return f"{place} ({dotted(path)})" if path else place

    def position(self, path: KeyPath) -> tuple[int, int] | None:
        """The line and column of `path`, or of the nearest parent that has them; of the whole at last.

        None if the data did not come from a text.
        """
        for end in range(len(path), -1, -1):
            if path[:end] in self.positions:
                return self.positions[path[:end]]
        return None

    def line(self, path: KeyPath) -> int | None:
        """The line of `path`, or of the nearest parent that has one; None for the whole."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.positions:
                return self.positions[path[:end]][0]
        return None


def replace_nonfinite(data: Any) -> Any:
    """`data` with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: replace_nonfinite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [replace_nonfinite(item) for item in data]
    return data


def fits_float(number: int | float) -> bool:
    """Whether a float can hold a number of this size."""
    return -sys.float_info.max <= number <= sys.float_info.max


def shortened(text: str) -> str:
    """The text of a number as an error shows it."""
    return text if len(text) <= 40 else f"{text[:40]}..."

"""Parsed data with the position of each part in its file."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zerokit.documents.paths import KeyPath, dotted


class Span(NamedTuple):
    """The place of an entry in the text, as offsets from 0."""

    start: int
    """Start of the key, with its quotes; in a list, of the item."""
    value: int
    """Start of the value."""
    end: int
    """End of the value."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A place where a text is not JSON, but DeepSpeed reads it."""

    kind: str
    """One of `comment`, `trailing comma`, `missing comma`, `bare key`, `bare value`, `single quotes`,
    `byte-order mark` or `no braces`."""
    message: str
    """Without a full stop."""
    hint: str
    line: int
    column: int
    start: int
    """Offset in the text, from 0."""
    end: int
    """Offset of its end."""
    meant: str | None = None
    """JSON's spelling of a value without quotes such as `True`."""


@dataclass(frozen=True)
class Document:
    """Parsed data with the position of each part."""

    data: Any
    name: str
    """The file's path as the user gave it, or the source of the text."""
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column (both from 1) of each path: of the key in a mapping, of the item in a list."""
    text: str | None = None
    """The text, if it was JSON."""
    spans: dict[KeyPath, Span] = field(default_factory=dict)
    """Place of each entry in `text`; ``()`` is the whole value."""
    departures: tuple[Departure, ...] = ()
    """Places where `text` is not JSON, in order; only a lenient reader accepts any."""

    @property
    def is_yaml(self) -> bool:
        return self.text is None and bool(self.positions)

    def where(self, path: KeyPath = ()) -> str:
        """``"file.json:12 (zero_optimization.stage)"``, as exact as known."""
        line = self.line(path)
        place = f"{self.name}:{line}" if line is not None else self.name
        return f"{place} ({dotted(path)})" if path else place

    def position(self, path: KeyPath) -> tuple[int, int] | None:
        """The line and column of `path` or of its nearest parent; None if there was no text."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.positions:
                return self.positions[path[:end]]
        return None

    def line(self, path: KeyPath) -> int | None:
        """The line of `path` or of its nearest parent; None for the whole."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.positions:
                return self.positions[path[:end]][0]
        return None


def replace_nonfinite(data: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None."""
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
    """The text of a value as an error shows it."""
    return text if len(text) <= 40 else f"{text[:40]}..."

"""Kinds of work in a step, and what its time is spent on: words and colours."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.tables import table_of

_TABLE = table_of(__file__)
WORK_WORDS: Mapping[str, str] = {kind: words for kind, (words, _) in _TABLE["kinds"].items()}
"""By the name of a `WorkKind`."""
WORK_COLOURS: Mapping[str, str] = {kind: colour for kind, (_, colour) in _TABLE["kinds"].items()}
"""Colours for the colour-blind (Okabe and Ito 2008)."""
TIME_PARTS: Mapping[str, tuple[str, str]] = _TABLE["time_parts"]
"""Words for the parts of a step's time, and the kind of work that has their colour."""

"""One line of a memory ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from zerokit.reporting.phases import Phase

Device = Literal["gpu", "pinned", "pageable", "nvme"]
"""Where a term is held: on one GPU, in one rank's pinned or pageable host memory, in one rank's files."""

Certainty = Literal["exact", "modelled", "guess"]
"""``exact``: DeepSpeed allocates just that. ``modelled``: a formula that checks confirm within a few percent.
``guess``: depends on what cannot be known here; `low_bytes` and `high_bytes` bound it."""

CHECKED_VERSIONS = "0.19.8"
"""DeepSpeed versions that a term holds for unless it says otherwise."""


@dataclass(frozen=True)
class Term:
    """Bytes that one named thing takes on one device of one rank during one phase.

    What lives through several phases, but not always, has a term in each of them, so that the terms of a
    phase and those of "always" add up to all that is held on that device at the phase's largest moment. Only
    "init" stands by itself.
    """

    name: str
    bytes: int
    phase: Phase
    symbols: str
    """The formula in symbols: ``e·Φ``."""
    numbers: str
    """The same with numbers filled in: ``2·1,100,048,384``."""
    source: str
    """Where it comes from: a file and function, or a section of a paper."""
    device: Device = "gpu"
    certainty: Certainty = "exact"
    low_bytes: int | None = None
    """At the least; `bytes` where None."""
    high_bytes: int | None = None
    """At the most; `bytes` where None."""
    versions: str = CHECKED_VERSIONS
    """Of DeepSpeed."""

    @property
    def formula(self) -> str:
        """In symbols, then in numbers: ``e·Φ = 2·1,100,048,384``."""
        return f"{self.symbols} = {self.numbers}" if self.numbers else self.symbols

    @property
    def low(self) -> int:
        """The least it can be."""
        return self.bytes if self.low_bytes is None else self.low_bytes

    @property
    def high(self) -> int:
        """The most it can be."""
        return self.bytes if self.high_bytes is None else self.high_bytes


def total_bytes(terms: Iterable[Term]) -> int:
    """The sum of the bytes of `terms`."""
    return sum(term.bytes for term in terms)

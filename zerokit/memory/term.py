"""One line of a memory ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["always", "forward", "loss", "backward", "step"]


@dataclass(frozen=True)
class Term:
    """Bytes that one named thing takes on one GPU during one phase.

    What lives through several phases, but not always, has a term in each of them, so that the terms of a
    phase and those of "always" add up to all that is held at its largest moment.
    """

    name: str
    bytes: int
    phase: Phase
    formula: str
    """In symbols, then in numbers: ``"e·Φ = 2·1,100,048,384"``."""
    source: str
    """Where the formula comes from: a file and function, or a section of a paper."""


def total_bytes(terms: Iterable[Term]) -> int:
    """The sum of the bytes of `terms`."""
    return sum(term.bytes for term in terms)

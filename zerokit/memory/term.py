"""Kinds of memory, each declared once where it is allocated, and the lines that a ledger makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from zerokit.reporting.categories import CATEGORIES, Category
from zerokit.reporting.phases import Phase

Device = Literal["gpu", "pinned", "pageable", "nvme"]
"""Where a term is held: on one GPU, in one rank's pinned or pageable host memory, in one rank's files."""

Certainty = Literal["exact", "modelled", "guess"]
"""``exact``: DeepSpeed allocates just that. ``modelled``: a formula that checks confirm within a few percent.
``guess``: depends on what cannot be known here, within an interval."""

CHECKED_VERSIONS = "0.19.8"
"""DeepSpeed versions that a term holds for unless it says otherwise."""


@dataclass(frozen=True, eq=False)
class TermKind:
    """A kind of allocation: the bytes of one, times their number.

    The file of the mechanism that allocates it declares it; a second mechanism replaces what differs.
    :func:`zerokit.estimation.explain.letters_of` explains the letters of formulas.
    """

    name: str
    category: Category
    _: KW_ONLY
    unit: str = ""
    """The bytes of one: ``e``; empty where bytes themselves are counted."""
    count: str
    """How many: ``Φₜ/N``."""
    source: str
    """Where it comes from: a file and function, or a section of a paper."""
    certainty: Certainty
    device: Device = "gpu"
    versions: str = CHECKED_VERSIONS
    """Of DeepSpeed."""

    @property
    def symbols(self) -> str:
        """The formula: ``e·Φₜ/N``."""
        unit = f"({self.unit})" if " + " in self.unit else self.unit
        return f"{unit}·{self.count}" if unit else self.count

    def term(self, phase: Phase, amounts: Mapping[int, int], *, high_bytes: int | None = None) -> Term:
        """A line of the ledger: of each unit in bytes, how many are held in `phase`."""
        return Term(**vars(self), phase=phase, amounts=dict(amounts), high_bytes=high_bytes)


@dataclass(frozen=True, kw_only=True)
class Term(TermKind):
    """What is held of one kind on one device of one rank during one phase.

    What lives through several phases, but not always, has a term in each of them, so that the terms of a
    phase and those of "always" add up to all that is held on that device at the phase's largest moment. Only
    `EARLY_PHASES` stand by themselves.
    """

    phase: Phase
    amounts: Mapping[int, int] = field(hash=False)
    """How many of each unit: ``{2: 1_100_048_384}``. There are several units where blocks are rounded, or
    tensors of several types are copied under one name."""
    high_bytes: int | None = None
    """At the most; `bytes` where None."""

    @property
    def bytes(self) -> int:
        """All units times their counts; the least, where it is an interval."""
        return sum(unit * count for unit, count in self.amounts.items())

    @property
    def numbers(self) -> str:
        """The formula with numbers filled in: ``2·1,100,048,384``."""
        return " + ".join(_product(unit, count) for unit, count in sorted(self.amounts.items()))

    @property
    def formula(self) -> str:
        """In symbols, then in numbers: ``e·Φ = 2·1,100,048,384``."""
        return self.symbols if self.high_bytes is not None else f"{self.symbols} = {self.numbers}"

    @property
    def low(self) -> int:
        """The least it can be."""
        return self.bytes

    @property
    def high(self) -> int:
        """The most it can be."""
        return self.bytes if self.high_bytes is None else self.high_bytes


def _product(unit: int, count: int) -> str:
    return "·".join(f"{factor:,}" for factor in (unit, count) if factor != 1) or "1"


def total_bytes(terms: Iterable[Term]) -> int:
    """The sum of the bytes of `terms`."""
    return sum(term.bytes for term in terms)


def by_category(terms: Iterable[Term]) -> dict[Category, int]:
    """Bytes of each category, in the order in which they are stacked."""
    sums = dict.fromkeys(CATEGORIES, 0)
    for term in terms:
        sums[term.category] += term.bytes
    return sums

"""Kinds of memory, and the terms of an estimate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Literal

from zerokit.reporting.categories import Category
from zerokit.reporting.phases import Phase

Device = Literal["gpu", "pinned", "pageable", "nvme"]
"""Device of a term: one GPU, one rank's pinned or pageable host memory, or one rank's files."""

Certainty = Literal["exact", "modelled", "guess"]
"""``exact``: DeepSpeed allocates exactly that. ``modelled``: a formula within a few percent of rehearsals.
``guess``: an interval, because it depends on facts that are not known here."""

CHECKED_VERSIONS = "0.19.8"
"""DeepSpeed versions of a term, unless it names others."""


@dataclass(frozen=True, eq=False)
class TermKind:
    """A kind of allocation: the bytes of one, times their number.

    Each kind is a row of `term_kinds.json`, under the file of the mechanism that allocates it. A row that is
    `like` another has only the fields that differ. :func:`zerokit.estimation.explain.letters_of` explains the
    letters of formulas.
    """

    name: str
    category: Category
    _: KW_ONLY
    unit: str = ""
    """The bytes of one: ``e``; empty where bytes themselves are counted."""
    count: str
    """How many: ``Φₜ/N``."""
    source: str
    """A file and function, or a section of a paper."""
    certainty: Certainty
    device: Device = "gpu"
    versions: str = CHECKED_VERSIONS
    """DeepSpeed versions."""

    @property
    def symbols(self) -> str:
        """The formula: ``e·Φₜ/N``."""
        unit = f"({self.unit})" if " + " in self.unit else self.unit
        return f"{unit}·{self.count}" if unit else self.count

    def term(self, phase: Phase, amounts: Mapping[int, int], *, high_bytes: int | None = None) -> Term:
        """The term of a phase; `amounts` maps bytes of a unit to their number."""
        return Term(**vars(self), phase=phase, amounts=dict(amounts), high_bytes=high_bytes)


@dataclass(frozen=True, kw_only=True)
class Term(TermKind):
    """Memory of one kind on one device of one rank in one phase.

    What exists in several phases, but not always, has a term in each of them. The terms of a phase and those
    of "always" add up to the memory at the phase's largest moment. `EARLY_PHASES` are complete by themselves.
    """

    phase: Phase
    amounts: Mapping[int, int] = field(hash=False)
    """Number by unit: ``{2: 1_100_048_384}``. There are several units if blocks are rounded, or if tensors of
    several types are copied under one name."""
    high_bytes: int | None = None
    """The maximum; None: `bytes`."""

    @property
    def bytes(self) -> int:
        """The sum of units times numbers; the minimum if it is an interval."""
        return sum(unit * count for unit, count in self.amounts.items())

    @property
    def numbers(self) -> str:
        """The formula in numbers: ``2·1,100,048,384``."""
        return " + ".join(_product(unit, count) for unit, count in sorted(self.amounts.items()))

    @property
    def formula(self) -> str:
        """The formula in symbols and in numbers: ``e·Φ = 2·1,100,048,384``."""
        return self.symbols if self.high_bytes is not None else f"{self.symbols} = {self.numbers}"

    @property
    def low(self) -> int:
        return self.bytes

    @property
    def high(self) -> int:
        return self.bytes if self.high_bytes is None else self.high_bytes


def _read_kinds() -> dict[str, TermKind]:
    kinds: dict[str, TermKind] = {}
    for file, rows in json.loads(Path(__file__).with_name("term_kinds.json").read_text(encoding="utf-8")).items():
        for name, row in rows.items():
            like = row.pop("like", None)
            kinds[f"{file}.{name}"] = TermKind(**row) if like is None else replace(kinds[like], **row)
    return kinds


TERM_KINDS = _read_kinds()
"""By file and name: ``stage_3.NORM``."""


class Kinds:
    """The kinds of memory that one file allocates, by name: ``KINDS.NORM``."""

    def __init__(self, **kinds: TermKind) -> None:
        vars(self).update(kinds)

    def __getattr__(self, name: str) -> TermKind:
        raise AttributeError(f"no row '{name}' under this file in term_kinds.json")


def kinds_of(module: str) -> Kinds:
    """The kinds of memory under a module's name: ``kinds_of(__file__)``."""
    own = f"{Path(module).stem}."
    return Kinds(**{name.removeprefix(own): kind for name, kind in TERM_KINDS.items() if name.startswith(own)})


def _product(unit: int, count: int) -> str:
    return "·".join(f"{factor:,}" for factor in (unit, count) if factor != 1) or "1"


def total_bytes(terms: Iterable[Term]) -> int:
    return sum(term.bytes for term in terms)

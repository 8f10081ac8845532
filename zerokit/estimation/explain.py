"""All formulas of an estimate, with numbers and sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from zerokit.estimation.table import heading
from zerokit.memory import Device, Estimate, Term
from zerokit.memory.gpu import sizes_of_run
from zerokit.memory.settings import settings_of
from zerokit.reporting.phases import PHASES, phase_words
from zerokit.tables import table_of
from zerokit.units import format_bytes, format_span

_DEVICES: tuple[tuple[str, tuple[Device, ...]], ...] = (
    ("On one GPU", ("gpu",)),
    ("On the host, one rank", ("pinned", "pageable")),
    ("On NVMe, one rank", ("nvme",)),
)
_CERTAINTIES = {
    "exact": "exact: DeepSpeed allocates just that",
    "modelled": "modelled: a formula that agrees with rehearsals within a few percent",
    "guess": "a guess",
}


_TABLE = table_of(__file__)
"""For each source of letters: letter -> attribute and meaning."""


class Letter(NamedTuple):
    number: int
    meaning: str


def explanation(answer: Estimate) -> Iterator[str]:
    """Lines: model states, then each device by phase, then the sums."""
    yield heading(answer)
    yield ""
    symbols = " ".join(_symbols(answer))
    for name, letter in letters_of(answer).items():
        if re.search(rf"(?<![A-Za-z]){name}(?![A-Za-zₜ₄ₑ_])", symbols):
            yield f"{name} = {letter.number:,}: {letter.meaning}"
    yield ""
    yield "Model states of one GPU (ZeRO paper, arXiv 1910.02054, section 5)"
    for line in answer.model_states.each:
        held = format_bytes(line.gpu_bytes) if line.where == "GPU" or line.gpu_share else f"on the {line.where}"
        yield f"  {line.name}: {line.symbols} = {line.numbers} = {held}"
    for title, devices in _DEVICES:
        terms = [term for device in devices for term in answer.terms_of(device)]
        if terms:
            yield ""
            yield title
            yield from _by_phase(terms)
    yield ""
    yield "What no allocator sees"
    for term in answer.overheads:
        yield from _lines(term, "  ")
    yield ""
    yield from _sum(answer)


def _symbols(answer: Estimate) -> Iterator[str]:
    """The formulas of all lines, in letters."""
    yield from (line.symbols for line in answer.model_states.each)
    for device in (device for _, devices in _DEVICES for device in devices):
        yield from (term.symbols for term in answer.terms_of(device))
    yield from (term.symbols for term in answer.overheads)


def _by_phase(terms: list[Term]) -> Iterator[str]:
    for phase in PHASES:
        held = [term for term in terms if term.phase == phase]
        if held:
            yield f"  {'always' if phase == 'always' else f'in {phase_words(phase)}'}"
        for term in sorted(held, key=lambda term: -term.bytes):
            yield from _lines(term, "    ")


def _lines(term: Term, indent: str) -> Iterator[str]:
    where = f", {term.device}" if term.device in ("pinned", "pageable") else ""
    size = format_bytes(term.bytes) if term.low == term.high else format_span(term.low, term.high)
    yield f"{indent}{term.name}{where}: {size}"
    yield f"{indent}  {term.formula}"
    yield f"{indent}  {_CERTAINTIES[term.certainty]}; {term.source}; DeepSpeed {term.versions}"


def _sum(answer: Estimate) -> Iterator[str]:
    device = answer.device
    phase = phase_words(device.peak_phase)
    yield f"The peak is the largest phase, {phase}: {format_bytes(device.peak_bytes)}"
    for term in sorted(device.terms_at_peak, key=lambda term: -term.bytes):
        if term.bytes:
            yield f"  {term.bytes:>20,}  {term.name}"
    yield f"  {device.peak_bytes:>20,}  bytes in all"


def letters_of(answer: Estimate) -> dict[str, Letter]:
    """The letters of the formulas; widths only if activations are counted."""
    settings, sizes = settings_of(answer.run), sizes_of_run(answer.run, settings_of(answer.run))
    letters = _letters("answer", answer) | _letters("settings", settings)
    states = answer.model_states
    if answer.run.parallelism.tensor > 1:
        letters["Φ"] = Letter(states.parameters.elements, "parameters of a rank of tensor parallelism")
        letters["Φₜ"] = Letter(states.gradients.elements, "trained parameters of such a rank")
    if packed := states.parameters.packed_bytes:
        letters["Φ₄"] = Letter(answer.num_parameters - states.parameters.elements, "parameters in 4 bits")
        letters["w"] = Letter(packed, "bytes of the weights in 4 bits")
    if sizes is not None:
        letters |= _letters("sizes", sizes) | _letters("run", answer.run)
        if sizes.sequence > 1:
            letters["s"] = Letter(sizes.seq, "tokens of a sequence on one rank")
    return letters


def _letters(kind: str, source: object) -> dict[str, Letter]:
    """The letters of an object's attributes, without those that are None."""
    numbers = ((letter, getattr(source, name), meaning) for letter, (name, meaning) in _TABLE[kind].items())
    return {letter: Letter(number, meaning) for letter, number, meaning in numbers if number is not None}

"""Every formula of an estimate, with numbers filled in and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.estimation.table import heading
from zerokit.memory import Device, Estimate, Term
from zerokit.memory.letters import letters_of
from zerokit.reporting.phases import PHASES, phase_words
from zerokit.reporting.terminal import show
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


def print_explanation(answer: Estimate) -> None:
    """Print the arithmetic on stdout, line by line."""
    show(explanation(answer))


def explanation(answer: Estimate) -> Iterator[str]:
    """The lines: model states first, then each device phase by phase, then the sums."""
    yield heading(answer)
    yield ""
    for name, letter in letters_of(answer).items():
        if name != "Φₜ" or letter.number != answer.num_parameters:
            yield f"{name} = {letter.number:,}: {letter.meaning}"
    yield ""
    yield "Model states of one GPU (ZeRO paper, arXiv 1910.02054, section 5)"
    for line in answer.model_states.each:
        held = format_bytes(line.bytes) if line.where == "GPU" else f"on the {line.where}"
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

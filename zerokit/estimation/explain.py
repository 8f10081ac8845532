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


class Letter(NamedTuple):
    """The value of a letter in one run."""

    number: int
    meaning: str


def print_explanation(answer: Estimate) -> None:
    """Print the formulas on stdout."""
    show(explanation(answer))


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
    letters = {
        "Φ": Letter(answer.num_parameters, "parameters"),
        "Φₜ": Letter(answer.num_trainable_parameters, "trained parameters"),
        "N": Letter(settings.world_size, "GPUs"),
        "e": Letter(settings.parameter_bytes, "bytes of a parameter or an activation"),
        "g": Letter(settings.accumulation_bytes, "bytes of a gradient while it is accumulated"),
        "c": Letter(settings.communication_bytes, "bytes of a gradient while it is reduced"),
        "m": Letter(settings.master_bytes, "bytes of a master weight"),
        "k": Letter(settings.state_bytes, "bytes of the optimizer's moments of a parameter"),
        "t": Letter(settings.temporary_bytes, "bytes of the optimizer's temporary tensors per parameter"),
        "reduce_bucket_size": Letter(settings.reduce_bucket, "elements of a bucket of gradients"),
    }
    if packed := answer.model_states.parameters.packed_bytes:
        unpacked = answer.model_states.parameters.elements
        letters["Φ₄"] = Letter(answer.num_parameters - unpacked, "parameters in 4 bits")
        letters["w"] = Letter(packed, "bytes of the weights in 4 bits")
    if sizes is not None:
        letters |= {
            "b": Letter(sizes.batch, "sequences of a micro batch"),
            **_evaluated(answer),
            "s": Letter(sizes.seq, "tokens of a sequence"),
            "V": Letter(sizes.vocabulary, "vocabulary size"),
            "h": Letter(sizes.h, "hidden size"),
            "f": Letter(sizes.f, "width of the feed-forward layer"),
            "q": Letter(sizes.q, "width of all queries"),
            "kv": Letter(sizes.kv, "width of all keys, and of all values"),
            "a": Letter(sizes.a, "attention heads"),
        }
    return letters


def _evaluated(answer: Estimate) -> dict[str, Letter]:
    batch = answer.run.eval_batch_size
    return {} if batch is None else {"bₑ": Letter(batch, "sequences of a batch of evaluation")}

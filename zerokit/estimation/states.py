"""The model states of a run as the ZeRO paper writes them: 2Φ + 2Φ + KΦ."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.memory import Estimate, Term
from zerokit.memory.settings import settings_of
from zerokit.units import format_count


@dataclass(frozen=True)
class StatesLine:
    """One of the three sorts of model states."""

    name: str
    symbols: str
    """``12Φ/N``."""
    numbers: str
    """The same with numbers filled in."""
    bytes: int
    """On one GPU; 0 where it is on the host or on NVMe."""
    where: str
    """``GPU``, ``host`` or ``NVMe``."""


def states_lines(answer: Estimate) -> list[StatesLine]:
    """Parameters, gradients and optimizer states (arXiv 1910.02054, section 5)."""
    run, settings, states = answer.run, settings_of(answer.run), answer.model_states
    whole, trained = answer.num_parameters, answer.num_trainable_parameters
    phi, phi_trained = "Φ", "Φ" if trained == whole else "Φₜ"
    optimizer_at = _WHERE[settings.offload_optimizer]
    gradients_at = "host" if optimizer_at != "GPU" and run.zero_stage >= 2 else "GPU"
    sorts = (
        (
            "parameters",
            settings.parameter_bytes,
            phi,
            whole,
            3,
            states.parameters_bytes,
            settings.offload_param,
        ),
        (
            "gradients",
            settings.accumulation_bytes,
            phi_trained,
            trained,
            2,
            states.gradients_bytes,
            gradients_at,
        ),
        (
            "optimizer states",
            settings.optimizer_bytes,
            phi_trained,
            trained,
            1,
            states.optimizer_states_bytes,
            optimizer_at,
        ),
    )
    lines = []
    for name, size, symbol, number, divided_from, held, place in sorts:
        divided = run.zero_stage >= divided_from
        symbols = f"{size}{symbol}" + ("/N" if divided else "")
        numbers = f"{size} · {format_count(number)}" + (f" / {run.world_size:,}" if divided else "")
        lines.append(StatesLine(name, symbols, numbers, held, _WHERE.get(place, place)))
    return lines


def host_at_peak(answer: Estimate) -> tuple[Term, ...]:
    """What makes the peak of the host, of one rank. What is there between steps is not yet there in init."""
    phase = answer.host.peak_phase
    phases = (phase,) if phase == "init" else (phase, "always")
    return tuple(
        term for term in answer.terms if term.device in ("pinned", "pageable") and term.phase in phases
    )


_WHERE = {"none": "GPU", "cpu": "host", "nvme": "NVMe"}

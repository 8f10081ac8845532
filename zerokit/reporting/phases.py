"""The phases of a run: their names, their order and the words they are printed as."""

from __future__ import annotations

from typing import Literal, get_args

RunPhase = Literal["init", "forward", "loss", "backward", "step", "between", "evaluation"]
"""What a moment of a run belongs to. ``init`` ends where the first forward pass begins; ``between`` is what
lies outside the engine's calls after that; ``evaluation`` is the one that a rehearsal makes at its end."""

RUN_PHASES: tuple[RunPhase, ...] = get_args(RunPhase)
"""In the order of a run, which is that of the codes in a recording."""

SHADES: dict[str, str] = {
    "init": "0.97",
    "forward": "0.93",
    "loss": "0.80",
    "backward": "0.88",
    "step": "0.76",
    "between": "1.0",
    "evaluation": "0.85",
}
"""Grey behind what is drawn of a phase, from 0 (black) to 1 (white)."""

Phase = Literal[
    "always", "init", "first pass", "forward", "loss", "backward", "step", "evaluation", "generation"
]
"""When a term of the ledger is held. ``init`` is from the model's construction to the first forward pass;
``first pass`` is that and its backward pass, where they take more than all others."""

PHASES: tuple[Phase, ...] = get_args(Phase)

EARLY_PHASES: tuple[Phase, ...] = ("init", "first pass")
"""What is held then is listed whole, because what lives always is not all there yet."""

_WORDS = {"step": "optimizer step", "always": "between steps"}


def phase_words(phase: str) -> str:
    """The phase as people say it: ``"optimizer step"``."""
    return _WORDS.get(phase, phase)

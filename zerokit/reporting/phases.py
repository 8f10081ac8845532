"""The phases of a run: names, order and words."""

from __future__ import annotations

from typing import Literal, get_args

RunPhase = Literal["init", "forward", "loss", "backward", "step", "between", "evaluation"]
"""Phase of a moment. ``init`` ends at the first forward pass; ``between`` is outside the engine's calls after
that; ``evaluation`` is that at the end of a rehearsal."""

RUN_PHASES: tuple[RunPhase, ...] = get_args(RunPhase)
"""In the order of a run; recordings store their index."""

Phase = Literal["always", "init", "first pass", "forward", "loss", "backward", "step", "evaluation", "generation"]
"""Phase of a term. ``init`` ends at the first forward pass; ``first pass`` is the first forward and backward
pass, if it needs more than all others."""

PHASES: tuple[Phase, ...] = get_args(Phase)

EARLY_PHASES: tuple[Phase, ...] = ("init", "first pass")
"""Terms of these phases are complete, because terms of "always" do not all exist yet."""

_WORDS = {"step": "optimizer step", "always": "between steps"}


def phase_words(phase: str) -> str:
    """The phase in words: ``"optimizer step"``."""
    return _WORDS.get(phase, phase)

"""Text generation without values: every sequence runs to its maximum length, the case to plan memory for."""

from __future__ import annotations

from typing import Any

import torch

from zerokit.patches import Patch, put, wrap
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_GENERATE = Patch("transformers.generation.utils:GenerationMixin", "generate", "see the phase forward")
_ENDS_BY_VALUE = tuple(
    Patch(f"transformers.generation.stopping_criteria:{name}", "__call__", "run to the maximum length")
    for name in ("EosTokenCriteria", "StopStringCriteria", "ConfidenceCriteria")
)


@stand_in("transformers.GenerationMixin.generate")
def install(setup: RankSetup) -> None:
    """Watch and steer transformers' `generate`, once it is imported."""
    backend = setup.rank.backend

    def watched(generate: Any, model: Any, *arguments: Any, **given: Any) -> Any:
        around = backend.phase
        backend.phase = around if around == "evaluation" else "forward"
        try:
            return generate(model, *arguments, **given)
        finally:
            backend.phase = around

    wrap(_GENERATE, watched)
    for criterion in _ENDS_BY_VALUE:
        put(criterion, _goes_on)


def _goes_on(_criterion: Any, input_ids: Any, scores: Any, **_: Any) -> Any:
    return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

"""Text generation without values: every sequence runs to its maximum length, the case to plan memory for."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from zerokit.rehearsal.imports import when_imported
from zerokit.rehearsal.library import Backend, Phase

_ENDS_BY_VALUE = ("EosTokenCriteria", "StopStringCriteria", "ConfidenceCriteria")


def install(backend: Backend) -> None:
    """Watch and steer transformers' `generate`, once it is imported."""

    def watch(module: ModuleType) -> None:
        generate = module.GenerationMixin.generate

        @functools.wraps(generate)
        def watched(model: Any, *arguments: Any, **given: Any) -> Any:
            around = backend.phase
            backend.phase = Phase.FORWARD
            try:
                return generate(model, *arguments, **given)
            finally:
                backend.phase = around

        module.GenerationMixin.generate = watched

    when_imported("transformers.generation.utils", watch)
    when_imported("transformers.generation.stopping_criteria", _never_end_by_value)


def _never_end_by_value(module: ModuleType) -> None:
    import torch

    def goes_on(_criterion: Any, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    for name in _ENDS_BY_VALUE:
        if hasattr(module, name):
            getattr(module, name).__call__ = goes_on

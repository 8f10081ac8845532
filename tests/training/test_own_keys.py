"""The keys of the section ``training`` that are zerokit's own."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.errors import RecipeError
from zerokit.training.own_keys import take_own


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"zenflow": {"topk_ratio": 0.1}}, "ZenFlow"),
        ({"offload_optimizer": {"super_offload": True}}, "SuperOff"),
    ],
)
def test_optimizers_that_cannot_leave_out_a_step_are_not_asked_to(section: dict[str, Any], name: str) -> None:
    loaded: Any = SimpleNamespace(where=lambda *keys: ".".join(keys))
    for word, refused in (("skip", True), ("stop", False)):
        resolved: Any = SimpleNamespace(training={"on_spike": word}, ds_config={"zero_optimization": section})
        with pytest.raises(RecipeError, match=f"'skip' .* {name}") if refused else nullcontext():
            assert take_own(resolved, loaded).on_spike == "stop"

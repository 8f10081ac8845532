"""TorchScript compiles the original of a function that zerokit has wrapped.

It takes a function's source from the wrapped function, and would look up the names of that source in the
wrapper's module.
"""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, is_original, wrap
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_CLOSURE = Patch(
    "torch._jit_internal", "get_closure", "have TorchScript compile what is beneath a replacement"
)


@stand_in("torch.jit.script")
def install(setup: RankSetup) -> None:
    """Have `torch.jit.script` take functions that zerokit has wrapped."""
    wrap(_CLOSURE, lambda names_of, function: names_of(_beneath(function)))


def _beneath(function: Any) -> Any:
    """The function that zerokit wrapped; `function` itself if another package wrapped it."""
    while is_original(inside := getattr(function, "__wrapped__", None)):
        function = inside
    return function

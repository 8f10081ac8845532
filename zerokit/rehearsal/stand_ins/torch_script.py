"""TorchScript in a rehearsal: it compiles what stands beneath a replacement, as where nothing is replaced.

It takes a function's source from what was wrapped, and would look up the names of that source where the
wrapper was written.
"""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, is_original, wrap
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_CLOSURE = Patch(
    "torch._jit_internal", "get_closure", "have TorchScript compile what is beneath a replacement"
)


@stand_in("torch.jit.script", in_real_runs=True)
def install(setup: RankSetup) -> None:
    """Have `torch.jit.script` take functions that zerokit has wrapped."""
    wrap(_CLOSURE, lambda names_of, function: names_of(_beneath(function)))


def _beneath(function: Any) -> Any:
    """What zerokit wrapped, `function` itself if it is another's."""
    while is_original(inside := getattr(function, "__wrapped__", None)):
        function = inside
    return function

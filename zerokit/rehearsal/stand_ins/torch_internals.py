"""torch's own Python where a replacement or memory without values would disturb it."""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, apply, is_original, wrap
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_CLOSURE = Patch("torch._jit_internal", "get_closure", "have TorchScript compile what is beneath a replacement")
_FILL = Patch("torch._C", "_set_deterministic_fill_uninitialized_memory", "leave fresh memory empty")


@stand_in("torch.jit.script", "torch.utils.deterministic.fill_uninitialized_memory")
def install(setup: RankSetup) -> None:
    """Have TorchScript compile the originals of functions; keep fresh memory empty in deterministic runs.

    TorchScript takes a function's source from the wrapped function, and would look up its names in the
    wrapper's module. Fresh memory that torch fills with NaN would make every page of a model resident.
    """

    def turn_off(switch: Any) -> Any:
        switch(False)
        return lambda _on: None

    wrap(_CLOSURE, lambda names_of, function: names_of(_beneath(function)))
    apply(_FILL, turn_off)


def _beneath(function: Any) -> Any:
    """The function that zerokit wrapped; `function` itself if another package wrapped it."""
    while is_original(inside := getattr(function, "__wrapped__", None)):
        function = inside
    return function

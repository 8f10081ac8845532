"""Fresh memory stays empty under `torch.use_deterministic_algorithms`.

torch would fill it with NaN (torch.utils.deterministic.fill_uninitialized_memory), which would make every
page of a model resident.
"""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, apply
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_FILL = Patch("torch._C", "_set_deterministic_fill_uninitialized_memory", "leave fresh memory empty")


@stand_in("torch.utils.deterministic.fill_uninitialized_memory")
def install(setup: RankSetup) -> None:
    """Turn the filling off, and keep it off."""

    def turn_off(switch: Any) -> Any:
        switch(False)
        return lambda _on: None

    apply(_FILL, turn_off)

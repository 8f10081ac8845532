"""What DeepSpeed's stage 3 keeps of gathered parameters, decided anew where the order of modules changes.

`PartitionedParameterCoordinator` remembers for good which parameters it releases behind each module of the
first order that it has seen. Evaluation before the first step is such an order, with no backward pass: in
training, parameters would then be released that the backward pass begins with, and gathered again. With
parameters on NVMe it stops: "Not enough buffers 0 for swapping 1".
"""

from __future__ import annotations

import functools
from typing import Any

from zerokit.patches import Patch, PrivateAttribute, watch, wrap

_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"
_CLEAR = Patch(_COORDINATOR, "_clear_trace_structures", "forget what was decided in another order of modules")
_DECIDED = PrivateAttribute(
    _COORDINATOR, "_PartitionedParameterCoordinator__params_to_release", "forget what it remembers"
)


@functools.cache  # once a process
def decide_anew() -> None:
    """Have all coordinators forget their decisions with the order of modules that they were made for."""
    watch(_DECIDED)
    wrap(_CLEAR, _forget)


def _forget(clear: Any, coordinator: Any) -> None:
    clear(coordinator)
    decides = getattr(type(coordinator), _DECIDED.name, None)
    # The cache is below a decorator of DeepSpeed's, which keeps what it decorates to itself.
    for found in (decides, *(cell.cell_contents for cell in getattr(decides, "__closure__", None) or ())):
        if hasattr(found, "cache_clear"):
            found.cache_clear()

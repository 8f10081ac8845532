"""What DeepSpeed's stage 3 keeps of gathered parameters, decided anew where the order of modules changes.

`PartitionedParameterCoordinator` remembers for good which parameters it releases behind each module of the
first order that it has seen. Evaluation before the first step is such an order, with no backward pass: in
training, parameters would then be released that the backward pass begins with, and gathered again. With
parameters on NVMe it stops: "Not enough buffers 0 for swapping 1".

What it reads ahead from NVMe are the next uses of parameters. Around the last layers, and in small models,
both passes use the same ones soon, and it stops at the second: "already assigned swap buffer".
"""

from __future__ import annotations

import functools
from typing import Any

from zerokit.patches import Patch, PrivateAttribute, watch, wrap

_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"
_CLEAR = Patch(_COORDINATOR, "_clear_trace_structures", "forget what was decided in another order of modules")
_READ = Patch(
    "deepspeed.runtime.swap_tensor.partitioned_param_swapper:AsyncPartitionedParameterSwapper",
    "swap_in",
    "read once what is used twice soon",
)
_DECIDED = PrivateAttribute(
    _COORDINATOR, "_PartitionedParameterCoordinator__params_to_release", "forget what it remembers"
)


@functools.cache  # once a process
def decide_anew() -> None:
    """Have all coordinators forget their decisions with the order of modules that they were made for."""
    watch(_DECIDED)
    wrap(_CLEAR, _forget)


@functools.cache
def read_once() -> None:
    """Have parameters read from NVMe once that are asked for twice at a time."""
    wrap(_READ, _read_each_once)


def _read_each_once(swap_in: Any, swapper: Any, params: Any, *given: Any, **named: Any) -> Any:
    return swap_in(
        swapper, list({parameter.ds_id: parameter for parameter in params}.values()), *given, **named
    )


def _forget(clear: Any, coordinator: Any) -> None:
    clear(coordinator)
    decides = getattr(type(coordinator), _DECIDED.name, None)
    # The cache is below a decorator of DeepSpeed's, which keeps what it decorates to itself.
    for found in (decides, *(cell.cell_contents for cell in getattr(decides, "__closure__", None) or ())):
        if hasattr(found, "cache_clear"):
            found.cache_clear()

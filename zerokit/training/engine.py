"""Changes of DeepSpeed's engine: faster calls, and fixes of its state before the first step.

`PartitionedParameterCoordinator` of stage 3 remembers for good which parameters it releases after each module
of the first order that it has seen. Evaluation before the first step is such an order, without a backward
pass: in training, parameters would be released too early. With parameters on NVMe this fails: "Not enough
buffers 0 for swapping 1". It also reads the next uses of parameters ahead from NVMe. If both passes use the
same parameters soon, it fails at the second use: "already assigned swap buffer".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from zerokit.patches import Patch, PrivateAttribute, put, replace, watch, wrap

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_TRAIN = Patch(_ENGINE, "train", "skip modules that are in the right mode already")
_ZERO_GRAD = Patch(_ENGINE, "zero_grad", "find parameters once a run, not once a step")
_START = Patch("deepspeed.utils.timer:ThroughputTimer", "start", "keep its clock out of compiled code")
_DEFAULTS = Patch(
    "deepspeed.runtime.base_optimizer:DeepSpeedOptimizer",
    "defaults",
    "let a polynomial schedule read the optimizer's defaults",
    read_by="transformers.optimization",
)


_of_inner = cached_property[Any](lambda optimizer: optimizer.optimizer.defaults)
"""Defaults of the optimizer inside DeepSpeed's. A later release may set the attribute."""
_of_inner.__set_name__(object, _DEFAULTS.name)
put(_DEFAULTS, _of_inner)


def exclude_timer_from_compile(engine: Any) -> None:
    """Exclude the engine's timer from compiled code.

    A hook of the module starts it; from the third step on it calls `torch.cuda.synchronize(None)`, at which
    Dynamo of torch 2.13 fails.
    """
    replace(engine.tput_timer, _START.name, torch.compiler.disable)


def speed_up_calls(engine: Any) -> None:
    """Make `train()` and `zero_grad()` of the engine faster: the model has all parameters and modules now."""
    module, parameters = engine.module, list(engine.module.parameters())

    def train(usual: Callable[[bool], Any]) -> Callable[..., None]:
        def set_mode(mode: bool = True) -> None:
            if module.training is not mode:
                usual(mode)

        return set_mode

    def zero_grad(_: Callable[[], Any]) -> Callable[[], None]:
        def clear() -> None:
            for parameter in parameters:
                parameter.grad = None

        return clear

    replace(engine, _TRAIN.name, train)
    replace(engine, _ZERO_GRAD.name, zero_grad)


_FUSED = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer"
_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
for _owner, _names in (
    (_FUSED, ("fp32_groups_flat", "fp16_groups_flat", "initialize_optimizer_states")),
    (_UNFUSED, ("fp32_groups", "fp16_groups", "initialize_optimizer_states")),
):
    for _name in _names:
        PrivateAttribute(_owner, _name, "undo the step that DeepSpeed takes before the first one")


def undo_dummy_step(optimizer: Any) -> None:
    """Reset a 16-bit optimizer without ZeRO to Adam's initial state.

    DeepSpeed 0.19.8 allocates its states with a step on zero gradients (``initialize_optimizer_states`` in
    runtime/fp16/unfused_optimizer.py and fused_optimizer.py). That step counts in Adam's bias correction, so
    the first updates are a quarter too small, and decays the master weights once.
    """
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    if isinstance(optimizer, FP16_Optimizer):
        masters, weights = optimizer.fp32_groups_flat, optimizer.fp16_groups_flat
    elif isinstance(optimizer, FP16_UnfusedOptimizer):
        masters = [master for group in optimizer.fp32_groups for master in group]
        weights = [weight for group in optimizer.fp16_groups for weight in group]
    else:
        return
    inner = optimizer.optimizer
    for holder in (*inner.state.values(), *inner.param_groups):
        if "step" in holder:
            # A tensor in torch's optimizers, a number in DeepSpeed's.
            holder["step"] = holder["step"] * 0
    with torch.no_grad():
        for master, weight in zip(masters, weights, strict=True):
            master.copy_(weight)


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
def reset_module_order() -> None:
    """Make coordinators forget their decisions together with the order of modules behind them."""
    watch(_DECIDED)
    wrap(_CLEAR, _forget)


@functools.cache
def read_parameters_once() -> None:
    """Read parameters from NVMe once that are requested twice at a time."""
    wrap(_READ, _read_each_once)


def _read_each_once(swap_in: Any, swapper: Any, params: Any, *given: Any, **named: Any) -> Any:
    return swap_in(swapper, list({parameter.ds_id: parameter for parameter in params}.values()), *given, **named)


def _forget(clear: Any, coordinator: Any) -> None:
    clear(coordinator)
    decides = getattr(type(coordinator), _DECIDED.name, None)
    # The cache is below a decorator of DeepSpeed's, which keeps what it decorates to itself.
    for found in (decides, *(cell.cell_contents for cell in getattr(decides, "__closure__", None) or ())):
        if hasattr(found, "cache_clear"):
            found.cache_clear()

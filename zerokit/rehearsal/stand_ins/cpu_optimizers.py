"""The compiled parts of DeepSpeedCPUAdam, DeepSpeedCPULion and DeepSpeedCPUAdagrad.

Signatures follow csrc/adam/cpu_adam.cpp, csrc/lion/cpu_lion.cpp and csrc/adagrad/cpu_adagrad.cpp. The kernels
update in place. A tensor that is not contiguous is copied first.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.registry import op_module
from zerokit.rehearsal.stand_ins.signatures import Given, positional
from zerokit.rehearsal.timing.rank_time import rank_time

_STATE_TYPES = {
    torch.float16: (torch.float32, torch.float16),
    torch.bfloat16: (torch.float32, torch.bfloat16),
    torch.float32: (torch.float32,),
}
"""Parameter types and the state types each may have (`InvokerInitializer` in csrc/*/cpu_*.cpp)."""


def cpu_adam() -> ModuleType:
    """The functions of Adam, and `adam_rollback`; :mod:`zenflow_adam` has those of ZenFlow."""
    rates = "lr beta1 beta2 eps weight_decay"
    functions = _functions("adam", f"{rates} adamw_mode", f"{rates} bias_correction", "exp_avg exp_avg_sq")

    def adam_rollback(optimizer_id: int, /, *arguments: object) -> int:
        """Arguments as of `adam_update`; it computes in float32 alone."""
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        return 0 if all(tensor.dtype == torch.float32 for tensor in tensors) else -1

    return op_module("cpu_adam", **functions, adam_rollback=adam_rollback)


def cpu_lion() -> ModuleType:
    rates = "lr beta1 beta2 weight_decay"
    return op_module("cpu_lion", **_functions("lion", rates, rates, "exp_avg"))


def cpu_adagrad() -> ModuleType:
    rates = "lr eps weight_decay"
    return op_module("cpu_adagrad", **_functions("adagrad", rates, rates, "exp_avg_sq"))


def _functions(name: str, settings: str, rates: str, states: str) -> dict[str, Callable[..., int]]:
    """`create_NAME` of `settings`, `NAME_update` of numbers `rates` and tensors `states`, `destroy_NAME`."""

    @positional(f"optimizer_id {settings} should_log")
    def create(given: Given) -> int:
        for setting in given.values():
            if not isinstance(setting, int | float):
                raise TypeError(f"{setting!r} is no number")
        return 0

    @positional(f"optimizer_id step {rates} params grads {states}")
    def update(given: Given) -> int:
        return _update(name, given["params"], given["grads"], *(given[state] for state in states.split()))

    create.__name__, update.__name__ = f"create_{name}", f"{name}_update"
    return {one.__name__: one for one in (create, update)} | {f"destroy_{name}": lambda optimizer_id: 0}


def _update(optimizer: str, params: Tensor, grads: Tensor, *states: Tensor) -> int:
    """An update, which takes the time of Adam's, though Lion and Adagrad have a state less."""
    copies = [tensor.contiguous() for tensor in (params, grads, *states)]
    if states[0].dtype not in _STATE_TYPES.get(params.dtype, ()):
        raise RuntimeError(
            f"{optimizer.capitalize()} optimizer with param type {params.dtype} and state type "
            f"{states[0].dtype} is not supported on current hardware"
        )
    if time := rank_time():
        dtype = str(grads.dtype).removeprefix("torch.")
        time.optimizer_of_host(f"{optimizer}_update", params.numel(), dtype)
    del copies
    return 0

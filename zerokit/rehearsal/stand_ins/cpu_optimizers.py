"""The compiled parts of DeepSpeedCPUAdam (also ZenFlow's), DeepSpeedCPULion and DeepSpeedCPUAdagrad.

Signatures follow csrc/adam/cpu_adam.cpp, csrc/lion/cpu_lion.cpp and csrc/adagrad/cpu_adagrad.cpp; none names
its arguments, so they are positional only. The kernels update in place. A tensor that is not contiguous is
copied first.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.registry import op_module
from zerokit.rehearsal.stand_ins.zenflow_adam import ZenFlowAdam
from zerokit.rehearsal.timing.rank_time import rank_time

_STATE_TYPES = {
    torch.float16: (torch.float32, torch.float16),
    torch.bfloat16: (torch.float32, torch.bfloat16),
    torch.float32: (torch.float32,),
}
"""Parameter types and the state types each may have (`InvokerInitializer` in csrc/*/cpu_*.cpp)."""


def cpu_adam() -> ModuleType:
    """`create_adam`, `adam_update`, `adam_rollback`, `destroy_adam` and the ``zenflow_adam_*`` functions."""

    def create_adam(
        optimizer_id: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        adamw_mode: bool,
        should_log: bool,
        /,
    ) -> int:
        return _create(lr, beta1, beta2, eps, weight_decay)

    def adam_update(
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        params: Tensor,
        grads: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        /,
    ) -> int:
        return _update("Adam", params, grads, exp_avg, exp_avg_sq)

    def adam_rollback(optimizer_id: int, /, *arguments: object) -> int:
        """Arguments as of `adam_update`; it computes in float32 alone."""
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        return 0 if all(tensor.dtype == torch.float32 for tensor in tensors) else -1

    return op_module(
        "cpu_adam",
        create_adam=create_adam,
        destroy_adam=_destroy,
        adam_update=adam_update,
        adam_rollback=adam_rollback,
        **ZenFlowAdam(adam_update).functions(),
    )


def cpu_lion() -> ModuleType:
    """`create_lion`, `lion_update`, `destroy_lion` (csrc/lion/cpu_lion_impl.cpp)."""

    def create_lion(
        optimizer_id: int, lr: float, beta1: float, beta2: float, weight_decay: float, should_log: bool, /
    ) -> int:
        return _create(lr, beta1, beta2, weight_decay)

    def lion_update(
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        params: Tensor,
        grads: Tensor,
        exp_avg: Tensor,
        /,
    ) -> int:
        return _update("Lion", params, grads, exp_avg)

    return op_module("cpu_lion", create_lion=create_lion, lion_update=lion_update, destroy_lion=_destroy)


def cpu_adagrad() -> ModuleType:
    """`create_adagrad`, `adagrad_update`, `destroy_adagrad` (csrc/adagrad/cpu_adagrad.cpp)."""

    def create_adagrad(
        optimizer_id: int, lr: float, eps: float, weight_decay: float, should_log: bool, /
    ) -> int:
        return _create(lr, eps, weight_decay)

    def adagrad_update(
        optimizer_id: int,
        step: int,
        lr: float,
        epsilon: float,
        weight_decay: float,
        params: Tensor,
        grads: Tensor,
        exp_avg_sq: Tensor,
        /,
    ) -> int:
        return _update("Adagrad", params, grads, exp_avg_sq)

    return op_module(
        "cpu_adagrad",
        create_adagrad=create_adagrad,
        adagrad_update=adagrad_update,
        destroy_adagrad=_destroy,
    )


def _create(*settings: float) -> int:
    for setting in settings:
        if not isinstance(setting, int | float):
            raise TypeError(f"{setting!r} is no number")
    return 0


def _destroy(optimizer_id: int, /) -> int:
    return 0


def _update(optimizer: str, params: Tensor, grads: Tensor, *states: Tensor) -> int:
    """An update, which takes the time of Adam's, though Lion and Adagrad have a state less."""
    copies = [tensor.contiguous() for tensor in (params, grads, *states)]
    if states[0].dtype not in _STATE_TYPES.get(params.dtype, ()):
        raise RuntimeError(
            f"{optimizer} optimizer with param type {params.dtype} and state type {states[0].dtype} "
            "is not supported on current hardware"
        )
    if time := rank_time():
        name, dtype = f"{optimizer.lower()}_update", str(grads.dtype).removeprefix("torch.")
        time.optimizer_of_host(name, params.numel(), dtype)
    del copies
    return 0

"""The compiled parts of DeepSpeedCPUAdam (also ZenFlow's), DeepSpeedCPULion and DeepSpeedCPUAdagrad.

Signatures follow csrc/adam/cpu_adam.cpp, csrc/lion/cpu_lion.cpp and csrc/adagrad/cpu_adagrad.cpp; none names
its arguments, so they are positional only. The kernels update in place. A tensor that is not contiguous is
copied first, and the copy is updated.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.arithmetic import float32, kernel, pieces, stand_in_module
from zerokit.rehearsal.stand_ins.zenflow_adam import ZenFlowAdam
from zerokit.rehearsal.timing.rank_time import rank_time

_STATE_TYPES = {
    torch.float16: (torch.float32, torch.float16),
    torch.bfloat16: (torch.float32, torch.bfloat16),
    torch.float32: (torch.float32,),
}
"""Parameter types and the state types each may have (`InvokerInitializer` in csrc/*/cpu_*.cpp)."""


@dataclass
class _AdamUpdate:
    """The arguments of `adam_update` and `adam_rollback` after the optimizer's number."""

    step: int
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    bias_correction: bool
    params: Tensor
    grads: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def __post_init__(self) -> None:
        self.step = operator.index(self.step)
        self.lr, self.eps = float32(self.lr), float32(self.eps)
        self.beta1, self.beta2 = float32(self.beta1), float32(self.beta2)
        self.weight_decay = float32(self.weight_decay)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.params, self.grads, self.exp_avg, self.exp_avg_sq


class _CpuAdam:
    """The op's functions, and which optimizer decouples its weight decay."""

    def __init__(self, compute: bool) -> None:
        self._compute = compute
        self._decoupled: dict[int, bool] = {}

    def create_adam(
        self,
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
        for scalar in (lr, beta1, beta2, eps, weight_decay):
            float32(scalar)
        self._decoupled[optimizer_id] = adamw_mode
        return 0

    def destroy_adam(self, optimizer_id: int, /) -> int:
        self._decoupled.pop(optimizer_id, None)
        return 0

    def adam_update(self, optimizer_id: int, /, *arguments: Any) -> int:
        """Arguments as of `_AdamUpdate`."""
        update = _AdamUpdate(*arguments)
        tensors = [tensor.contiguous() for tensor in update.tensors]
        _check_types("Adam", update.params, update.exp_avg)
        _take_time("adam_update", update.params, update.grads)
        if self._compute:
            with kernel():
                for p, g, m, v in pieces(*tensors):
                    _adam(p, g, m, v, update, self._decoupled[optimizer_id])
        return 0

    def adam_rollback(self, optimizer_id: int, /, *arguments: Any) -> int:
        """Arguments as of `_AdamUpdate`."""
        update = _AdamUpdate(*arguments)
        if any(tensor.dtype != torch.float32 for tensor in update.tensors):
            return -1
        if self._compute:
            with kernel():
                for p, g, m, v in pieces(*update.tensors):
                    _adam_rollback(p, g, m, v, update)
        return 0


def cpu_adam(*, compute: bool) -> ModuleType:
    """`create_adam`, `adam_update`, `adam_rollback`, `destroy_adam` and the ``zenflow_adam_*`` functions."""
    op = _CpuAdam(compute)
    return stand_in_module(
        "cpu_adam",
        create_adam=op.create_adam,
        destroy_adam=op.destroy_adam,
        adam_update=op.adam_update,
        adam_rollback=op.adam_rollback,
        **ZenFlowAdam(op.adam_update).functions(),
    )


def cpu_lion(*, compute: bool) -> ModuleType:
    """`create_lion`, `lion_update`, `destroy_lion` (csrc/lion/cpu_lion_impl.cpp)."""

    def create_lion(
        optimizer_id: int, lr: float, beta1: float, beta2: float, weight_decay: float, should_log: bool, /
    ) -> int:
        for scalar in (lr, beta1, beta2, weight_decay):
            float32(scalar)
        return 0

    def destroy_lion(optimizer_id: int, /) -> int:
        return 0

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
        lr, beta1, beta2, decay = float32(lr), float32(beta1), float32(beta2), float32(weight_decay)
        tensors = [tensor.contiguous() for tensor in (params, grads, exp_avg)]
        _check_types("Lion", params, exp_avg)
        _take_time("lion_update", params, grads)
        after_decay = float32(1 - float32(lr * decay)) if decay > 0 else 1.0
        if compute:
            with kernel():
                for param, grad, momentum in pieces(*tensors):
                    g, m = grad.float(), momentum.float()
                    direction = m * beta1 + g * float32(1 - beta1)
                    # Unlike the CUDA kernel, a direction of +0 moves down here: the sign bit decides.
                    update = torch.copysign(torch.full_like(direction, lr), direction)
                    param.copy_(param.float() * after_decay - update)
                    momentum.copy_(m * beta2 + g * float32(1 - beta2))
        return 0

    return stand_in_module(
        "cpu_lion", create_lion=create_lion, lion_update=lion_update, destroy_lion=destroy_lion
    )


def cpu_adagrad(*, compute: bool) -> ModuleType:
    """`create_adagrad`, `adagrad_update`, `destroy_adagrad` (csrc/adagrad/cpu_adagrad.cpp)."""

    def create_adagrad(
        optimizer_id: int, lr: float, eps: float, weight_decay: float, should_log: bool, /
    ) -> int:
        for scalar in (lr, eps, weight_decay):
            float32(scalar)
        return 0

    def destroy_adagrad(optimizer_id: int, /) -> int:
        return 0

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
        lr, epsilon, decay = float32(lr), float32(epsilon), float32(weight_decay)
        tensors = [tensor.contiguous() for tensor in (params, grads, exp_avg_sq)]
        _check_types("Adagrad", params, exp_avg_sq)
        _take_time("adagrad_update", params, grads)
        if compute:
            with kernel():
                for param, grad, variance in pieces(*tensors):
                    p = param.float()
                    g = grad.float() + decay * p if decay > 0 else grad.float()
                    v = variance.float() + g * g
                    # The vectorised kernel leaves the gradient alone; the scalar one overwrites the last few
                    # elements of it with the update. Nobody reads them, so they are left alone here.
                    param.copy_(p - lr * (g / (v.sqrt() + epsilon)))
                    variance.copy_(v)
        return 0

    return stand_in_module(
        "cpu_adagrad",
        create_adagrad=create_adagrad,
        adagrad_update=adagrad_update,
        destroy_adagrad=destroy_adagrad,
    )


def _adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    scalars: _AdamUpdate,
    decoupled: bool,
) -> None:
    """One update as `Adam_Optimizer::Step_1` does it (csrc/adam/cpu_adam_impl.cpp): all in float32."""
    beta1, beta2, decay = scalars.beta1, scalars.beta2, scalars.weight_decay
    correction1 = correction2 = 1.0
    if scalars.bias_correction:
        correction1 = float32(1 - beta1**scalars.step)
        correction2 = float32(1 / math.sqrt(1 - beta2**scalars.step))
    p, g = param.float(), grad.float()
    if decay > 0 and not decoupled:
        g = g + decay * p
    m = exp_avg.float() * beta1 + g * float32(1 - beta1)
    v = exp_avg_sq.float() * beta2 + g * g * float32(1 - beta2)
    update = m / (v.sqrt() * correction2 + scalars.eps)
    if decay > 0 and decoupled:
        p = p - float32(scalars.lr * decay) * p
    param.copy_(p - float32(scalars.lr / correction1) * update)
    exp_avg.copy_(m)
    exp_avg_sq.copy_(v)


def _adam_rollback(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, scalars: _AdamUpdate
) -> None:
    """Undoes one decoupled update (`adamw_rollback_inplace`, csrc/adam/cpu_adam_impl.cpp)."""
    beta1, beta2 = scalars.beta1, scalars.beta2
    m_hat = exp_avg / float32(1 - beta1**scalars.step)
    v_hat = exp_avg_sq / float32(1 - beta2**scalars.step)
    update = scalars.lr * m_hat / (v_hat.sqrt() + scalars.eps)
    before = (param + update) / float32(1 - float32(scalars.lr * scalars.weight_decay))
    param.copy_(torch.where(before.isfinite(), before, 0.0))
    exp_avg.copy_((exp_avg - float32(1 - beta1) * grad) / beta1)
    exp_avg_sq.copy_((exp_avg_sq - float32(1 - beta2) * grad * grad) / beta2)


def _take_time(name: str, params: Tensor, grads: Tensor) -> None:
    """Lion and Adagrad as Adam, though they have a state less."""
    if time := rank_time():
        time.optimizer_of_host(name, params.numel(), str(grads.dtype).removeprefix("torch."))


def _check_types(optimizer: str, params: Tensor, state: Tensor) -> None:
    if state.dtype not in _STATE_TYPES.get(params.dtype, ()):
        raise RuntimeError(
            f"{optimizer} optimizer with param type {params.dtype} and state type {state.dtype} "
            "is not supported on current hardware"
        )

"""DeepSpeed's compiled ops with real values: Adam, and files for async_io."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.native import backend
from zerokit.rehearsal.stand_ins.registry import op_module


@contextmanager
def _kernel() -> Iterator[None]:
    """No autograd, and nothing counted where a virtual device counts."""
    with torch.no_grad():
        if backend.is_loaded():
            with backend.uncounted():
                yield
        else:
            yield


def adam(
    tensors: Sequence[Tensor],
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    *,
    decoupled: bool,
) -> None:
    """One update in float32 of parameters, gradients and both moments, with bias correction."""
    param, grad, exp_avg, exp_avg_sq = tensors
    p, g = param.detach().float(), grad.detach().float()
    if not decoupled:
        g = g + decay * p
    m = betas[0] * exp_avg.float() + (1 - betas[0]) * g
    v = betas[1] * exp_avg_sq.float() + (1 - betas[1]) * g * g
    update = (m / (1 - betas[0] ** step)) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
    if decoupled:
        update = update + decay * p
    param.detach().copy_(p - lr * update)
    exp_avg.copy_(m)
    exp_avg_sq.copy_(v)


def fused_adam() -> ModuleType:
    """DeepSpeed's op `fused_adam`, on any device."""

    def multi_tensor_adam(
        _chunk: int, _flag: Tensor, lists: Sequence[Sequence[Tensor]], lr: float, *rest: Any
    ) -> None:
        beta1, beta2, eps, step, is_decoupled, _, decay = rest
        with _kernel():
            for grad, param, *moments in zip(*lists, strict=True):
                rates = (lr, (beta1, beta2), eps, decay)
                adam((param, grad, *moments), step, *rates, decoupled=bool(is_decoupled))

    return op_module("fused_adam", multi_tensor_adam=multi_tensor_adam)


def _cpu_adam(op: ModuleType) -> None:
    create, update, decoupled = op.create_adam, op.adam_update, {}

    def create_adam(number: int, *settings: Any) -> int:
        decoupled[number] = settings[5]
        return int(create(number, *settings))

    def adam_update(number: int, step: int, *rest: Any) -> int:
        lr, beta1, beta2, eps, decay, _, *tensors = rest
        with _kernel():
            adam(tensors, step, lr, (beta1, beta2), eps, decay, decoupled=decoupled[number])
        return int(update(number, step, *rest))

    op.__dict__.update(create_adam=create_adam, adam_update=adam_update)


def host_memory(num_bytes: int) -> Tensor:
    """In the place of page-locked memory, without a device."""
    return torch.empty(num_bytes, dtype=torch.uint8)


def _move(memory: Tensor, transfer: Any) -> None:
    raw = memory.detach().view(-1).view(torch.uint8).numpy()
    is_read = transfer.kind == "nvme_read"
    flags = os.O_RDONLY if is_read else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(transfer.file, flags, 0o600)
    try:
        if is_read:
            os.preadv(descriptor, [raw.data], transfer.offset)
        else:
            os.pwrite(descriptor, raw.data, transfer.offset)
    finally:
        os.close(descriptor)


def _with_files(handle: Any) -> Any:
    class RealHandle(handle):  # type: ignore[misc]
        def _finish(self, transfer: Any) -> None:
            _move(transfer.buffer if transfer.bounce is None else transfer.bounce, transfer)
            if transfer.kind == "nvme_read" and transfer.bounce is not None:
                transfer.buffer.copy_(transfer.bounce.view(transfer.buffer.shape))
            super()._finish(transfer)

    return RealHandle


def give_values(modules: dict[str, ModuleType]) -> None:
    """Have the stand-ins of `op_builders.op_modules` compute, and move bytes to and from files."""
    if "cpu_adam" in modules:
        modules["fused_adam"] = fused_adam()
        _cpu_adam(modules["cpu_adam"])
    modules["async_io"].aio_handle = _with_files(modules["async_io"].aio_handle)  # type: ignore[attr-defined]

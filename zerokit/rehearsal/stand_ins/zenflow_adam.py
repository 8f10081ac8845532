"""ZenFlow's CPU Adam: DeepSpeed runs it in a process of its own, a rehearsal in this process.

A rehearsal has one process per rehearsed rank, so that all of a rank's host memory is counted in one place.
Tensors that DeepSpeed moves to shared memory for the other process are moved here as well (see
`SharedMemory`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_MOST_GROUPS = 1024
_SCALARS_PER_GROUP = 5


class _Control(ctypes.Structure):
    """`ZenControl` of csrc/adam/cpu_adam_impl.cpp; only its size matters. `sem_t` is 32 bytes on Linux."""

    _fields_ = (
        ("cmd_ready", ctypes.c_int64 * 4),
        ("done", ctypes.c_int64 * 4),
        ("cmd", ctypes.c_int),
        ("now_state", ctypes.c_int),
        ("step", ctypes.c_int64),
        ("num_groups", ctypes.c_int),
        ("hp", ctypes.c_float * (_MOST_GROUPS * _SCALARS_PER_GROUP)),
        ("bias_correction", ctypes.c_uint8 * _MOST_GROUPS),
    )


@dataclass(frozen=True)
class _Group:
    param: Tensor
    grads: tuple[Tensor, Tensor]
    exp_avgs: tuple[Tensor, Tensor]
    exp_avg_sqs: tuple[Tensor, Tensor]
    stale: Tensor


@dataclass
class _Worker:
    optimizer_id: int
    groups: list[_Group] = field(default_factory=list)


@dataclass
class _Channel:
    """The control block of the two sides: who steps, and steps done but not waited for."""

    worker: _Worker | None = None
    steps_done: int = 0


class ZenFlowAdam:
    """The ``zenflow_adam_*`` functions of the cpu_adam op; a submitted step runs at once.

    Args:
        adam_update: the op's own `adam_update`, which does (or skips) the arithmetic.
    """

    def __init__(self, adam_update: Callable[..., int]) -> None:
        self._adam_update = adam_update
        self._workers: dict[int, _Worker] = {}
        self._channels: dict[int, _Channel] = {}

    def functions(self) -> dict[str, Callable[..., object]]:
        return {
            "zenflow_adam_create": self.create,
            "zenflow_adam_register_group": self.register_group,
            "zenflow_adam_destroy": self.destroy,
            "zenflow_adam_ctrl_size": self.control_size,
            "zenflow_adam_ctrl_init": self.initialise_control,
            "zenflow_adam_run_worker": self.run_worker,
            "zenflow_adam_submit": self.submit,
            "zenflow_adam_wait": self.wait,
            "zenflow_adam_ctrl_exit": self.exit,
        }

    def create(self, optimizer_id: int, affinity: Sequence[int], /) -> int:
        handle = len(self._workers)
        self._workers[handle] = _Worker(optimizer_id)
        return handle

    def register_group(
        self,
        handle: int,
        param: Tensor,
        grad0: Tensor,
        grad1: Tensor,
        exp_avg0: Tensor,
        exp_avg1: Tensor,
        exp_avg_sq0: Tensor,
        exp_avg_sq1: Tensor,
        stale: Tensor,
        /,
    ) -> None:
        if not param.is_contiguous():
            raise RuntimeError("ZenFlowAdam: param must be contiguous")
        group = _Group(param, (grad0, grad1), (exp_avg0, exp_avg1), (exp_avg_sq0, exp_avg_sq1), stale)
        self._workers[handle].groups.append(group)

    def destroy(self, handle: int, /) -> None:
        self._workers[handle].groups.clear()

    def control_size(self) -> int:
        return ctypes.sizeof(_Control)

    def initialise_control(self, control_ptr: int, num_groups: int, /) -> None:
        if num_groups > _MOST_GROUPS:
            raise RuntimeError("ZenFlowAdam: too many param groups")
        self._channels[control_ptr] = _Channel()

    def run_worker(self, handle: int, control_ptr: int, /) -> None:
        """Connects the two sides and returns; the compiled one blocks its process here."""
        self._channels[control_ptr].worker = self._workers[handle]

    def submit(
        self,
        control_ptr: int,
        now_state: int,
        step: int,
        lr: Sequence[float],
        beta1: Sequence[float],
        beta2: Sequence[float],
        eps: Sequence[float],
        weight_decay: Sequence[float],
        bias_correction: Sequence[int],
        /,
    ) -> None:
        channel = self._channels[control_ptr]
        if channel.worker is None:
            return
        scalars = zip(lr, beta1, beta2, eps, weight_decay, bias_correction, strict=True)
        for group, values in zip(channel.worker.groups, scalars, strict=True):
            self._adam_update(
                channel.worker.optimizer_id,
                step,
                *values,
                group.param,
                group.grads[now_state],
                group.exp_avgs[now_state],
                group.exp_avg_sqs[now_state],
            )
            group.stale.copy_(group.param)
        channel.steps_done += 1

    def wait(self, control_ptr: int, timeout_seconds: float, /) -> bool:
        channel = self._channels[control_ptr]
        if channel.steps_done == 0:
            return False
        channel.steps_done -= 1
        return True

    def exit(self, control_ptr: int, /) -> None:
        self._channels[control_ptr].worker = None


class SharedMemory:
    """The host memory that moving tensors to shared memory takes, without making any.

    `torch.Tensor.share_memory_`, and sending a tensor to another process, copy its storage to a shared
    mapping and release the old memory (torch/csrc/StorageSharing.cpp, `THPStorage_shareFd`). Pageable memory
    goes back to the system: what is left is the peak of having both. Pinned memory stays in the cache of the
    pinned allocator (ATen/core/CachingHostAllocator.h) and is not given back, so the host holds both from
    then on.
    """

    def __init__(self) -> None:
        self._moved: dict[int, Tensor | None] = {}

    def move(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if tensor.device.type != "cpu" or address in self._moved:
            return
        mapping = torch.empty(storage.nbytes(), dtype=torch.uint8)
        self._moved[address] = mapping if tensor.is_pinned() else None


def start_in_this_process(zenflow: Any) -> None:
    """Takes the place of `start_optimizer_process` (deepspeed/runtime/zenflow/zenflow_utils.py).

    The same tensors are shared and the same four states per group are allocated; no process starts and no
    core is bound. `zenflow` is DeepSpeed's optimizer; it is given `zf_op`, `zf_ctrl`, `process` and
    `process_optimizer_established` as there.
    """
    from deepspeed.ops.op_builder import CPUAdamBuilder
    from deepspeed.runtime.zenflow.zenflow_utils import _compute_zf_pt_affinity

    op = CPUAdamBuilder().load()
    params = (
        zenflow.fp32_partitioned_groups_flat
        if zenflow.zf_stage3
        else [group["params"][0] for group in zenflow.optimizer.param_groups]
    )
    shared = SharedMemory()
    optimizer_id = -1  # DeepSpeedCPUAdam counts from 0 in this process; in its own it would be 0
    op.create_adam(optimizer_id, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    handle = op.zenflow_adam_create(optimizer_id, [])
    for param in params:
        shared.move(param.data)
        if not hasattr(param, "stale_param"):
            param.stale_param = torch.zeros_like(param.data, dtype=param.dtype, device=param.device)
        for tensor in (param.stale_param.data, *(grad.data for grad in param.overlap_grad)):
            shared.move(tensor)
        states = [torch.zeros_like(param.data) for _ in range(4)]
        grads = [grad.data for grad in param.overlap_grad]
        op.zenflow_adam_register_group(handle, param.data, *grads, *states, param.stale_param.data)
    control = torch.zeros(op.zenflow_adam_ctrl_size(), dtype=torch.uint8)
    op.zenflow_adam_ctrl_init(control.data_ptr(), len(params))
    op.zenflow_adam_run_worker(handle, control.data_ptr())
    _compute_zf_pt_affinity(zenflow)  # for the collective in it
    zenflow.zf_op, zenflow.zf_ctrl, zenflow.zf_shared = op, control, shared
    # Asked only when a wait finds no finished step, which means that it died.
    zenflow.process = SimpleNamespace(is_alive=lambda: False)
    zenflow.process_optimizer_established = True

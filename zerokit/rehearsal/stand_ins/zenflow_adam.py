"""ZenFlow's CPU Adam: DeepSpeed runs it in a process of its own, a rehearsal in this process.

So all of a rank's host memory is counted in one place. Tensors that DeepSpeed moves to shared memory for the
other process are moved here as well (`SharedMemory`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.signatures import Given, positional

_MOST_GROUPS = 1024
_CONTROL_BYTES = struct.calcsize(f"@4q 4q 2i q i {_MOST_GROUPS * 5}f {_MOST_GROUPS}B 0q")
"""Size of `ZenControl` in csrc/adam/cpu_adam_impl.cpp, with `sem_t` of 32 bytes."""


@dataclass
class _Worker:
    optimizer_id: int
    groups: list[Given] = field(default_factory=list)


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
        """All of them, by name."""
        names = ("create", "register_group", "destroy", "ctrl_size", "ctrl_init", "run_worker", "submit")
        return {f"zenflow_adam_{name}": getattr(self, name) for name in (*names, "wait", "ctrl_exit")}

    def create(self, optimizer_id: int, affinity: Sequence[int], /) -> int:
        handle = len(self._workers)
        self._workers[handle] = _Worker(optimizer_id)
        return handle

    @positional("self handle param grad0 grad1 exp_avg0 exp_avg1 exp_avg_sq0 exp_avg_sq1 stale")
    def register_group(given: Given) -> None:  # noqa: N805 - `self` is among them
        if not given["param"].is_contiguous():
            raise RuntimeError("ZenFlowAdam: param must be contiguous")
        given["self"]._workers[given["handle"]].groups.append(given)

    def destroy(self, handle: int, /) -> None:
        self._workers[handle].groups.clear()

    def ctrl_size(self) -> int:
        return _CONTROL_BYTES

    def ctrl_init(self, control_ptr: int, num_groups: int, /) -> None:
        if num_groups > _MOST_GROUPS:
            raise RuntimeError("ZenFlowAdam: too many param groups")
        self._channels[control_ptr] = _Channel()

    def run_worker(self, handle: int, control_ptr: int, /) -> None:
        """Connects the two sides and returns; the compiled one blocks its process here."""
        self._channels[control_ptr].worker = self._workers[handle]

    def submit(self, control_ptr: int, now_state: int, step: int, /, *scalars: Sequence[float]) -> None:
        """One step; `scalars` are those of `adam_update`, each by group."""
        channel = self._channels[control_ptr]
        if channel.worker is None:
            return
        for group, *values in zip(channel.worker.groups, *scalars, strict=True):
            states = [group[f"{name}{now_state}"] for name in ("grad", "exp_avg", "exp_avg_sq")]
            self._adam_update(channel.worker.optimizer_id, step, *values, group["param"], *states)
            group["stale"].copy_(group["param"])
        channel.steps_done += 1

    def wait(self, control_ptr: int, timeout_seconds: float, /) -> bool:
        channel = self._channels[control_ptr]
        if channel.steps_done == 0:
            return False
        channel.steps_done -= 1
        return True

    def ctrl_exit(self, control_ptr: int, /) -> None:
        self._channels[control_ptr].worker = None


class SharedMemory:
    """The host memory that moving tensors to shared memory takes, without making any.

    torch copies the storage to a shared mapping and releases the old memory (torch/csrc/StorageSharing.cpp,
    `THPStorage_shareFd`). Pageable memory goes back to the system, so only the peak has both. The pinned
    allocator keeps it (ATen/core/CachingHostAllocator.h), so the host holds both from then on.
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
    """Replaces `start_optimizer_process` (deepspeed/runtime/zenflow/zenflow_utils.py).

    It shares the same tensors, allocates the same four states per group and sets the same attributes of
    `zenflow`, DeepSpeed's optimizer. No process starts and no core is bound.
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
    # Called only if a wait finds no finished step, which means that the process died.
    zenflow.process = SimpleNamespace(is_alive=lambda: False)
    zenflow.process_optimizer_established = True

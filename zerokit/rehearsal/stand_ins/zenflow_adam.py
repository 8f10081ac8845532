"""ZenFlow's CPU Adam: DeepSpeed runs it in a process of its own, a rehearsal in this process.

So all of a rank's host memory is counted in one place. Tensors that DeepSpeed moves to shared memory for the
other process are moved here as well (`SharedMemory`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

_MOST_GROUPS = 1024
_CONTROL_BYTES = struct.calcsize(f"@4q 4q 2i q i {_MOST_GROUPS * 5}f {_MOST_GROUPS}B 0q")
"""Size of `ZenControl` in csrc/adam/cpu_adam_impl.cpp, with `sem_t` of 32 bytes."""


class Group(NamedTuple):
    """One partition of the parameters, and a copy from before the last step."""

    param: Tensor
    states: Sequence[tuple[Tensor, Tensor, Tensor]]
    """Gradient and both states of Adam, twice: one is filled while the other is stepped."""
    stale: Tensor


class ZenFlowAdam:
    """What DeepSpeed's optimizer calls of the cpu_adam op after the process has started; a step runs at once.

    `adam_update` is the op's function of that name.
    """

    def __init__(self, adam_update: Callable[..., int], optimizer_id: int, groups: Sequence[Group]) -> None:
        self._adam_update, self._optimizer_id, self._groups = adam_update, optimizer_id, groups
        self._steps_done = 0
        """Those that were not waited for."""

    def zenflow_adam_submit(self, control_ptr: int, state: int, step: int, /, *scalars: Sequence[float]) -> None:
        """One step; `scalars` are those of `adam_update`, each by group."""
        for group, *values in zip(self._groups, *scalars, strict=True):
            self._adam_update(self._optimizer_id, step, *values, group.param, *group.states[state])
            group.stale.copy_(group.param)
        self._steps_done += 1

    def zenflow_adam_wait(self, control_ptr: int, timeout_seconds: float, /) -> bool:
        is_done = self._steps_done > 0
        self._steps_done -= is_done
        return is_done


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
    groups = []
    for param in params:
        shared.move(param.data)
        if not hasattr(param, "stale_param"):
            param.stale_param = torch.zeros_like(param.data, dtype=param.dtype, device=param.device)
        for tensor in (param.stale_param.data, *(grad.data for grad in param.overlap_grad)):
            shared.move(tensor)
        states = [
            (grad.data, torch.zeros_like(param.data), torch.zeros_like(param.data)) for grad in param.overlap_grad
        ]
        groups.append(Group(param.data, states, param.stale_param.data))
    _compute_zf_pt_affinity(zenflow)  # for the collective in it
    zenflow.zf_op = ZenFlowAdam(op.adam_update, optimizer_id, groups)
    zenflow.zf_ctrl, zenflow.zf_shared = torch.zeros(_CONTROL_BYTES, dtype=torch.uint8), shared
    # Called only if a wait finds no finished step, which means that the process died.
    zenflow.process = SimpleNamespace(is_alive=lambda: False)
    zenflow.process_optimizer_established = True

"""DeepNVMe's ops async_io and pin_memory, with a ledger in place of the disk.

Names and defaults follow csrc/aio/py_lib/py_ds_aio.cpp. Memory that is not
page-locked is transferred through a locked bounce buffer of the same size, from the request until the wait
(csrc/aio/py_lib/deepspeed_cpu_op.cpp). Locked memory has exactly its size and lives until it is freed by its
address (csrc/pin_memory/deepspeed_pin_tensor.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from zerokit.hardware.costs.card_costs import Copy
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.stand_ins.nvme_ledger import nvme_ledger
from zerokit.rehearsal.stand_ins.registry import op_module
from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters
from zerokit.rehearsal.timing.rank_time import rank_time

PageLockedAllocator = Callable[[int], Tensor]
"""Makes a flat uint8 host tensor of that many bytes, counted as pinned memory of exactly that size."""


def locked_by(backend: Backend) -> PageLockedAllocator:
    """Make host memory that `backend` counts as pinned, at exactly its size."""

    def allocate(num_bytes: int) -> Tensor:
        with backend.page_locking():
            return torch.empty(num_bytes, dtype=torch.uint8)

    return allocate


class PageLockedMemory:
    """The manager that aio and pin_memory handles share (`deepspeed_pin_tensor_t::shared`)."""

    def __init__(self, allocate: PageLockedAllocator) -> None:
        self._allocate = allocate
        self._owned: dict[int, torch.UntypedStorage] = {}

    def new(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor of shape ``(num_elements,)`` that lives until it is freed."""
        bytes_tensor = self._allocate(num_elements * dtype.itemsize)
        storage = bytes_tensor.untyped_storage()
        self._owned[storage.data_ptr()] = storage
        # A tensor of its own over the storage: callers watch it with weakref.
        return torch.empty(0, dtype=dtype).set_(storage, 0, (num_elements,), (1,))

    def free_address(self, address: int) -> bool:
        """Frees the tensor that begins at `address`; False if none does."""
        return self._owned.pop(address, None) is not None

    def owns(self, tensor: Tensor) -> bool:
        """True if all bytes of `tensor` lie in one tensor made here."""
        if tensor.device.type != "cpu":
            return False
        begin = tensor.data_ptr()
        end = begin + tensor.nbytes
        return any(address <= begin and end <= address + storage.nbytes() for address, storage in self._owned.items())

    def is_pinned(self, tensor: Tensor) -> bool:
        """True if I/O can use `tensor` as it is: locked here, or pinned by torch."""
        return tensor.is_pinned() or self.owns(tensor)


class _Handle:
    """What the handles of both ops have in common."""

    _memory: PageLockedMemory

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Tensor) -> Tensor:
        return self._memory.new(num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, locked_tensor: Tensor) -> bool:
        return self._memory.free_address(locked_tensor.data_ptr())

    def is_pinned(self, buffer: Tensor) -> bool:
        return self._memory.is_pinned(buffer)


class PinHandle(_Handle):
    """`pin_handle` of csrc/pin_memory/py_ds_pin_memory.cpp."""

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        return self._memory.free_address(address)


_DIRECT_IO_ALIGNMENT = 512


@dataclass
class _Transfer:
    """One pending request."""

    kind: Copy
    buffer: Tensor
    file: str
    offset: int
    bounce: Tensor | None
    done: int = 0
    """When the drives have done it, if time is rehearsed."""


def _transfers(kind: Copy, parameters: str, *, is_async: bool = False) -> Any:
    """A method that moves a buffer to or from a file.

    An argument `async_` among `parameters` says whether it is asynchronous.
    """

    @with_parameters(f"self buffer filename {parameters} file_offset=0")
    def transfer(given: Given) -> int:
        handle: IoHandle = given["self"]
        is_waited_for = not given.get("async_", is_async)
        return handle._submit(kind, given["buffer"], given["filename"], given["file_offset"], wait=is_waited_for)

    return transfer


class IoHandle(_Handle):
    """`aio_handle` (csrc/aio/py_lib/deepspeed_py_io_handle.cpp)."""

    get_intra_op_parallelism: Callable[[], int]
    _pending: list[_Transfer]

    @with_parameters(
        "self block_size=1048576 queue_depth=128 single_submit=False overlap_events=False intra_op_parallelism=1"
    )
    def __init__(given: Given) -> None:  # noqa: N805 - `self` is among them
        (_, handle), *settings = given.items()
        handle._pending = []
        for name, value in settings:
            handle.__dict__[f"get_{name}"] = lambda value=value: value

    def get_alignment(self) -> int:
        return self.get_intra_op_parallelism() * _DIRECT_IO_ALIGNMENT

    pread = _transfers("nvme_read", "validate async_")
    pwrite = _transfers("nvme_write", "validate async_")
    sync_pread = _transfers("nvme_read", "")
    sync_pwrite = _transfers("nvme_write", "")
    async_pread = _transfers("nvme_read", "", is_async=True)
    async_pwrite = _transfers("nvme_write", "", is_async=True)

    def wait(self) -> int:
        """Completes the pending requests in order and returns how many there were."""
        pending, self._pending = self._pending, []
        for transfer in pending:
            self._finish(transfer)
        return len(pending)

    def _submit(self, kind: Copy, buffer: Tensor, file: str | int, offset: int, *, wait: bool) -> int:
        if isinstance(file, int):  # a descriptor
            file = str(Path(f"/proc/self/fd/{file}").readlink())
        if buffer.nbytes % self.get_intra_op_parallelism():
            _report(
                f"{file}: {buffer.nbytes} bytes are not divisible by "
                f"intra_op_parallelism = {self.get_intra_op_parallelism()}"
            )
            return -1
        needs_bounce = not (buffer.device.type == "cpu" and self._memory.is_pinned(buffer))
        transfer = self._request(kind, buffer, file, offset, bounce=needs_bounce)
        if transfer is None:
            return -1
        self._pending.append(transfer)
        return self.wait() if wait else 0

    def _request(self, kind: Copy, buffer: Tensor, file: str, offset: int, *, bounce: bool) -> _Transfer | None:
        """Checks and records the request; prints a reason and returns None if it fails."""
        ledger = nvme_ledger()
        size = ledger.size_of(file)
        is_read = kind == "nvme_read"
        if is_read and size is None:
            _report(f"{file}: no such file to read")
            return None
        if is_read and size is not None and offset + buffer.nbytes > size:
            # The compiled op stops the process here (an assert).
            raise RuntimeError(f"{file}: reading {buffer.nbytes} bytes at {offset} of a file of {size} bytes")
        if not is_read and not ledger.folder_exists(file):
            _report(f"{file}: its folder does not exist")
            return None
        locked = self._memory.new(buffer.numel(), buffer.dtype) if bounce else None
        transfer = _Transfer(kind, buffer, file, offset, locked)
        if is_read:
            ledger.read_bytes += buffer.nbytes
        else:
            ledger.write(file, offset, buffer.nbytes)
            if transfer.bounce is not None:
                transfer.bounce.copy_(buffer.detach().reshape(-1))
        if time := rank_time():
            transfer.done = time.begin_nvme(kind, buffer.nbytes)
        return transfer

    def _finish(self, transfer: _Transfer) -> None:
        if time := rank_time():
            time.wait_for_nvme(transfer.done)
        if transfer.bounce is not None:
            if transfer.kind == "nvme_read":
                # On a device the bounce buffer is copied there first, and from that copy into the buffer.
                transfer.bounce.to(transfer.buffer.device)
            self._memory.free_address(transfer.bounce.data_ptr())


def modules(allocate: PageLockedAllocator) -> dict[str, ModuleType]:
    """The stand-ins by the name of their op: async_io, pin_memory."""
    nvme_ledger().clear()
    shared = {"_memory": PageLockedMemory(allocate)}
    aio_handle: type[IoHandle] = type("aio_handle", (IoHandle,), shared)
    pin_handle: type[PinHandle] = type("pin_handle", (PinHandle,), shared)

    def deepspeed_memcpy(dest: Tensor, src: Tensor, /) -> int:
        dest.contiguous().copy_(src.contiguous())
        return 0

    return {
        "async_io": op_module("async_io", aio_handle=aio_handle, deepspeed_memcpy=deepspeed_memcpy),
        "pin_memory": op_module("pin_memory", pin_handle=pin_handle),
    }


def _report(problem: str) -> None:
    """Print why an op returns -1, as the compiled ops do: DeepSpeed fails without a message."""
    sys.stderr.write(f"async_io: {Path(sys.argv[0]).name}: {problem}\n")

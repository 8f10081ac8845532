"""DeepNVMe's ops async_io, gds and pin_memory, with a ledger in place of the disk.

Names and defaults follow csrc/aio/py_lib/py_ds_aio.cpp and csrc/gds/py_lib/py_ds_gds.cpp. Memory that is not
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
    """The manager that aio, gds and pin_memory handles share (`deepspeed_pin_tensor_t::shared`)."""

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
        return any(
            address <= begin and end <= address + storage.nbytes() for address, storage in self._owned.items()
        )

    def is_pinned(self, tensor: Tensor) -> bool:
        """True if I/O can use `tensor` as it is: locked here, or pinned by torch."""
        return tensor.is_pinned() or self.owns(tensor)


class PinHandle:
    """`pin_handle` of csrc/pin_memory/py_ds_pin_memory.cpp."""

    _memory: PageLockedMemory

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Tensor) -> Tensor:
        return self._memory.new(num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, locked_tensor: Tensor) -> bool:
        return self._memory.free_address(locked_tensor.data_ptr())

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        return self._memory.free_address(address)

    def is_pinned(self, buffer: Tensor) -> bool:
        return self._memory.is_pinned(buffer)


_DIRECT_IO_ALIGNMENT = 512


@dataclass
class _Transfer:
    """One pending request."""

    buffer: Tensor
    file: str
    offset: int
    reading: bool
    bounce: Tensor | None
    done: int = 0
    """When the drives have done it, if time is rehearsed."""

    @property
    def kind(self) -> Copy:
        return "nvme_read" if self.reading else "nvme_write"


def _transfers(*, is_read: bool, is_async: bool) -> Callable[..., int]:
    """A method that reads a file into a buffer or writes a buffer to it."""

    def transfer(self: IoHandle, buffer: Tensor, filename: str | int, file_offset: int = 0) -> int:
        return self._submit(buffer, filename, file_offset, reading=is_read, wait=not is_async)

    return transfer


class IoHandle:
    """The common part of aio and gds handles (csrc/aio/py_lib/deepspeed_py_io_handle.cpp)."""

    _memory: PageLockedMemory

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        self.get_block_size = lambda: block_size
        self.get_queue_depth = lambda: queue_depth
        self.get_single_submit = lambda: single_submit
        self.get_overlap_events = lambda: overlap_events
        self.get_intra_op_parallelism: Callable[[], int] = lambda: intra_op_parallelism
        self._pending: list[_Transfer] = []

    def get_alignment(self) -> int:
        return self.get_intra_op_parallelism() * _DIRECT_IO_ALIGNMENT

    def read(self, buffer: Tensor, filename: str, validate: bool, file_offset: int = 0) -> int:
        return self._carry_out(self._request(buffer, filename, file_offset, reading=True, bounce=False))

    def write(self, buffer: Tensor, filename: str, validate: bool, file_offset: int = 0) -> int:
        return self._carry_out(self._request(buffer, filename, file_offset, reading=False, bounce=False))

    def pread(self, buffer: Tensor, filename: str, validate: bool, async_: bool, file_offset: int = 0) -> int:
        return self._submit(buffer, filename, file_offset, reading=True, wait=not async_)

    def pwrite(
        self, buffer: Tensor, filename: str, validate: bool, async_: bool, file_offset: int = 0
    ) -> int:
        return self._submit(buffer, filename, file_offset, reading=False, wait=not async_)

    sync_pread = _transfers(is_read=True, is_async=False)
    sync_pwrite = _transfers(is_read=False, is_async=False)
    async_pread = _transfers(is_read=True, is_async=True)
    async_pwrite = _transfers(is_read=False, is_async=True)

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: Tensor) -> Tensor:
        return self._memory.new(num_elem, example_tenosr.dtype)

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        return self._memory.free_address(tensor.data_ptr())

    def is_pinned(self, buffer: Tensor) -> bool:
        return self._memory.is_pinned(buffer)

    def wait(self) -> int:
        """Completes the pending requests in order and returns how many there were."""
        pending, self._pending = self._pending, []
        for transfer in pending:
            self._finish(transfer)
        return len(pending)

    def _submit(self, buffer: Tensor, file: str | int, offset: int, *, reading: bool, wait: bool) -> int:
        if isinstance(file, int):  # a descriptor
            file = str(Path(f"/proc/self/fd/{file}").readlink())
        if buffer.nbytes % self.get_intra_op_parallelism():
            _report(
                f"{file}: {buffer.nbytes} bytes are not divisible by "
                f"intra_op_parallelism = {self.get_intra_op_parallelism()}"
            )
            return -1
        transfer = self._request(buffer, file, offset, reading=reading, bounce=self._needs_bounce(buffer))
        if transfer is None:
            return -1
        self._pending.append(transfer)
        return self.wait() if wait else 0

    def _needs_bounce(self, buffer: Tensor) -> bool:
        return not (buffer.device.type == "cpu" and self._memory.is_pinned(buffer))

    def _request(
        self, buffer: Tensor, file: str, offset: int, *, reading: bool, bounce: bool
    ) -> _Transfer | None:
        """Checks and records the request; prints a reason and returns None if it fails."""
        size = nvme_ledger().size_of(file)
        if reading and size is None:
            _report(f"{file}: no such file to read")
            return None
        if reading and size is not None and offset + buffer.nbytes > size:
            # The compiled op stops the process here (an assert).
            raise RuntimeError(f"{file}: reading {buffer.nbytes} bytes at {offset} of a file of {size} bytes")
        if not reading and not nvme_ledger().folder_exists(file):
            _report(f"{file}: its folder does not exist")
            return None
        bounce_buffer = self._memory.new(buffer.numel(), buffer.dtype) if bounce else None
        transfer = _Transfer(buffer, file, offset, reading, bounce_buffer)
        if reading:
            nvme_ledger().read_bytes += buffer.nbytes
        else:
            nvme_ledger().write(file, offset, buffer.nbytes)
            if bounce_buffer is not None:
                bounce_buffer.copy_(buffer.detach().reshape(-1))
        if time := rank_time():
            transfer.done = time.begin_nvme(transfer.kind, buffer.nbytes)
        return transfer

    def _carry_out(self, transfer: _Transfer | None) -> int:
        if transfer is None:
            return -1
        self._finish(transfer)
        return 0

    def _finish(self, transfer: _Transfer) -> None:
        if time := rank_time():
            time.wait_for_nvme(transfer.done)
        if transfer.bounce is None:
            return
        if transfer.reading:
            # On a device the bounce buffer is copied there first, and from that copy into the buffer.
            transfer.bounce.to(transfer.buffer.device)
        self._memory.free_address(transfer.bounce.data_ptr())


class GdsHandle(IoHandle):
    """GPUDirect storage: device memory is read and written without a bounce buffer, if it is registered."""

    def __init__(self, *settings: Any, **named_settings: Any) -> None:
        super().__init__(*settings, **named_settings)
        self._registered: set[int] = set()

    def get_alignment(self) -> int:
        return _DIRECT_IO_ALIGNMENT  # csrc/gds: the base class is built with a parallelism of 1

    def new_pinned_device_tensor(self, num_elem: int, example_tenosr: Tensor) -> Tensor:
        tensor = torch.empty(num_elem, dtype=example_tenosr.dtype, device="cuda")
        self.pin_device_tensor(tensor)
        return tensor

    def free_pinned_device_tensor(self, tensor: Tensor) -> bool:
        return self.unpin_device_tensor(tensor)

    def pin_device_tensor(self, tensor: Tensor) -> bool:
        self._registered.add(tensor.untyped_storage().data_ptr())
        return True

    def unpin_device_tensor(self, tensor: Tensor) -> bool:
        self._registered.discard(tensor.untyped_storage().data_ptr())
        return True

    def _needs_bounce(self, buffer: Tensor) -> bool:
        return not buffer.is_cuda and super()._needs_bounce(buffer)


def modules(allocate: PageLockedAllocator) -> dict[str, ModuleType]:
    """The stand-ins by the name of their op: async_io, gds, pin_memory.

    Args:
        allocate: makes page-locked memory.
    """
    nvme_ledger().clear()
    shared = {"_memory": PageLockedMemory(allocate)}
    aio_handle: type[IoHandle] = type("aio_handle", (IoHandle,), shared)
    gds_handle: type[GdsHandle] = type("gds_handle", (GdsHandle,), shared)
    pin_handle: type[PinHandle] = type("pin_handle", (PinHandle,), shared)

    def deepspeed_memcpy(dest: Tensor, src: Tensor, /) -> int:
        dest.contiguous().copy_(src.contiguous())
        return 0

    return {
        "async_io": op_module("async_io", aio_handle=aio_handle, deepspeed_memcpy=deepspeed_memcpy),
        "gds": op_module("gds", gds_handle=gds_handle),
        "pin_memory": op_module("pin_memory", pin_handle=pin_handle),
    }


def _report(problem: str) -> None:
    """Print why an op returns -1, as the compiled ops do: DeepSpeed fails without a message."""
    sys.stderr.write(f"async_io: {Path(sys.argv[0]).name}: {problem}\n")

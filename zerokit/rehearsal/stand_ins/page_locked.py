"""Host memory that DeepSpeed locks itself (``mlock``) instead of asking CUDA for pinned memory.

csrc/pin_memory/deepspeed_pin_tensor.cpp allocates each tensor with ``posix_memalign`` and ``mlock`` at
exactly its size. It lives until it is freed by address, whether or not Python still holds the tensor.
torch's own pinned memory is different: rounded up to a power of two, and kept in a cache when freed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zerokit.rehearsal.native.backend import Backend

PageLockedAllocator = Callable[[int], Tensor]
"""Makes a flat uint8 host tensor of that many bytes, counted as pinned memory of exactly that size."""


def locked_by(backend: Backend) -> PageLockedAllocator:
    """Host memory that `backend` counts as pinned, at exactly its size."""

    def allocate(num_bytes: int) -> Tensor:
        with backend.page_locking():
            return torch.empty(num_bytes, dtype=torch.uint8)

    return allocate


def torch_pinned(num_bytes: int) -> Tensor:
    """Pinned memory of torch's where there is a (virtual) device, ordinary memory where there is none."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


class PageLockedMemory:
    """The manager that aio, gds and pin_memory handles share (`deepspeed_pin_tensor_t::shared`)."""

    def __init__(self, allocate: PageLockedAllocator = torch_pinned) -> None:
        self._allocate = allocate
        self._owned: dict[int, torch.UntypedStorage] = {}

    def new(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor of shape ``(num_elements,)`` that lives until it is freed."""
        bytes_tensor = self._allocate(num_elements * dtype.itemsize)
        storage = bytes_tensor.untyped_storage()
        self._owned[storage.data_ptr()] = storage
        # A tensor of its own over the storage: callers watch it with weakref, so nothing here may keep it
        # alive.
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

"""bitsandbytes: 4-bit and 8-bit layers and optimizers, whose kernels are C functions called by ctypes.

The kernels allocate nothing: they get pointers into tensors that bitsandbytes' Python allocated, which runs
unchanged. The CUDA functions do nothing; functions for the CPU are the library's own.
"""

from __future__ import annotations

from typing import Any

import torch

from zerokit.patches import Patch, apply, put
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.timing.rank_time import rank_time

_SPECS = Patch("bitsandbytes.cuda_specs", "get_cuda_specs", "load the library for the CPU", since="0.43.1")
_LIBRARY = Patch("bitsandbytes.cextension", "lib", "launch kernels that do nothing")
_PAGED = Patch("bitsandbytes.functional", "get_paged", "count paged states as memory of the host")


class _Library:
    """`bitsandbytes.cextension.lib`, as a CUDA build has it."""

    compiled_with_cuda = True

    def __init__(self, for_cpu: Any) -> None:
        self._for_cpu = for_cpu

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._for_cpu, name) if "cpu" in name else _do_nothing

    @staticmethod
    def has_avx512bf16_cpu() -> bool:
        """False, so that bitsandbytes does not load its kernel for such CPUs from the Hub."""
        return False

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def _do_nothing(*_: Any) -> int:
    """An error code of 0, where the function has one."""
    if time := rank_time():
        time.without_cost.setdefault("kernels of bitsandbytes", "they get addresses, which have no sizes")
    return 0


@stand_in("bitsandbytes")
def install(setup: RankSetup) -> None:
    """Replace the library of kernels, where bitsandbytes is installed."""
    put(_SPECS, lambda: None)
    apply(_LIBRARY, _Library)
    put(_PAGED, _paged)


def _paged(*shape: int, dtype: Any = None, device: Any = None) -> Any:
    """A tensor of unified memory: of the host's, where it lies when the GPU has no room for it."""
    result: Any = torch.zeros(shape, dtype=dtype or torch.float32)
    result.is_paged = True
    result.page_deviceid = torch.cuda.current_device() if device is None else device.index
    return result

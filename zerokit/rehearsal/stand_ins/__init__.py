"""What stands in for code that needs a GPU or a compiler, with the same signatures and allocations."""

from __future__ import annotations

from zerokit.rehearsal.stand_ins import deepspeed_ops, triton_kernels
from zerokit.rehearsal.stand_ins.page_locked import PageLockedAllocator, torch_pinned


def install(*, compute: bool, page_locked: PageLockedAllocator = torch_pinned) -> None:
    """Installs every stand-in for DeepSpeed's compiled ops and for Triton kernels. Call before
    deepspeed.initialize.

    Args:
        compute: False for a rehearsal: what the real ops allocate is allocated, nothing is calculated and no
        file is
            written. True to check a rehearsal against a real run: the optimizers really update (float32
            rounding apart) and NVMe transfers really happen.
        page_locked: makes the host memory that DeepSpeed locks itself, from a size in bytes.
    """
    deepspeed_ops.install(compute=compute, allocate=page_locked)
    triton_kernels.install()

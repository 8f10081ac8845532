"""DeepSpeed's extensions that a CPU machine lacks, or that would take minutes to compile for a test.

What DeepSpeed does with them (partitioning, buffers, swapping, communication) is its own code; only the
innermost operation is zerokit's.
"""

from __future__ import annotations

import torch


def install() -> None:
    """Make Adam on the device, NVMe and ZeRO++ work here.

    - `fused_adam`: its CPU version takes over a minute to compile.
    - `async_io`: is built on libaio, whose headers few machines have. Without them zerokit's stand-in reads
      and writes the same files with plain system calls.
    - `quantizer`: its kernels are CUDA only.
    """
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu import AsyncIOBuilder

    from tests.launched import cpu_quantizer
    from tests.rehearsal.real_ops import fused_adam

    OpBuilder._loaded_ops["fused_adam"] = fused_adam()
    cpu_quantizer.install()
    if not AsyncIOBuilder().is_compatible(verbose=False):
        stand_in_for_async_io()


def stand_in_for_async_io() -> None:
    """Have zerokit's stand-in read and write what DeepSpeed swaps to NVMe, whether libaio is here or not."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    from tests.rehearsal.real_ops import give_values
    from zerokit.rehearsal.stand_ins import async_io

    modules = async_io.modules(lambda size: torch.empty(size, dtype=torch.uint8))
    give_values(modules)
    OpBuilder._loaded_ops |= {name: modules[name] for name in ("async_io", "pin_memory")}

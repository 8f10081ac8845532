"""Memory that no allocator sees, in bytes: the CUDA context, the buffers of NCCL, a process itself.

It depends on the driver, the card, the libraries loaded and the network: bounds, not figures.
"""

from __future__ import annotations

from zerokit.units import GIB, MIB

CUDA_CONTEXT = (round(0.47 * GIB), round(0.92 * GIB))
"""Low and high, as measured by card and driver (ml-engineering, training/performance)."""

NCCL_CONNECTION = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""One connection holds a buffer per protocol: Simple, LL128 and LL (NCCL src/init.cc: DEFAULT_BUFFSIZE,
DEFAULT_LL128_BUFFSIZE = 120 elements * 640 threads * 8 steps * 8 bytes, DEFAULT_LL_BUFFSIZE = 8 lines *
512 threads * 8 steps * 16 bytes)."""

NCCL_FEW_CHANNELS = 8
NCCL_MANY_CHANNELS = 24

NCCL_FIRST_COMMUNICATOR_HIGH = round(1.45 * GIB)
"""Added by the first barrier between two GPUs, the kernels of NCCL included (ml-engineering,
training/performance/distributed/torch-dist-mem-usage.py)."""

NCCL_ONE_GPU_HIGH = 256 * MIB
"""A single GPU has no connections; NCCL's kernels may be loaded."""

HOST_PROCESS = (256 * MIB, 4 * GIB)
"""Of the host, by one rank's process: torch, transformers and DeepSpeed imported, as measured on a machine
without a GPU; and a guess with CUDA's libraries, NCCL and data loaders."""

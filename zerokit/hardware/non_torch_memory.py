"""Memory outside torch's allocator: CUDA context, NCCL buffers, and processes.

It depends on driver, card, libraries and network, so these are bounds.
"""

from __future__ import annotations

from zerokit.units import GIB, MIB

EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""The setting of torch's allocator that avoids most fragmentation."""

CUDA_CONTEXT = (round(0.47 * GIB), round(0.92 * GIB))
"""Minimum and maximum, measured by card and driver (ml-engineering, training/performance)."""

NCCL_CONNECTION = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""One connection holds a buffer per protocol: Simple, LL128 and LL (NCCL src/init.cc: DEFAULT_BUFFSIZE,
DEFAULT_LL128_BUFFSIZE = 120 elements * 640 threads * 8 steps * 8 bytes, DEFAULT_LL_BUFFSIZE = 8 lines *
512 threads * 8 steps * 16 bytes)."""

NCCL_FEW_CHANNELS = 8
NCCL_MANY_CHANNELS = 24

NCCL_FIRST_COMMUNICATOR_HIGH = round(1.45 * GIB)
"""The first barrier between two GPUs adds it, including NCCL's kernels (ml-engineering,
training/performance/distributed/torch-dist-mem-usage.py)."""

NCCL_ONE_GPU_HIGH = 256 * MIB
"""A single GPU has no connections; NCCL's kernels may be loaded."""

HOST_PROCESS = (256 * MIB, 4 * GIB)
"""Host memory of a rank's process. Minimum: torch, transformers and DeepSpeed imported, measured without a
GPU. Maximum: a guess with CUDA's libraries, NCCL and data loaders."""

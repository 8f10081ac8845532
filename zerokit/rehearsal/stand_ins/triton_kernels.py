"""What happens when a script launches a Triton kernel: known ones are stood in for, others are named and
refused.

A Triton kernel allocates nothing: it writes into tensors that Python made before. So for kernels whose
results no Python code reads back (norms, rotary embeddings, losses), a launch that does nothing leaves memory
exactly as it is on a GPU. A kernel that nobody looked at might decide shapes, so it is refused.
"""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.errors import RehearsalGap

KNOWN_MODULES = (
    "liger_kernel.",
    "deepspeed.runtime.chunked_cross_entropy",
    "deepspeed.ops.triton_ops.fused_rms_norm",
    "deepspeed.ops.triton_ops.fused_rotary_pos_emb",
    "deepspeed.ops.triton_ops.swiglu_triton",
)
"""Modules whose kernels only fill tensors that were allocated before the launch."""

_HINT = "Use the library's PyTorch path (most have a setting for it), or measure this run on a GPU"


_LAUNCHERS = tuple(
    Patch(owner, "run", "leave out kernels that only fill tensors, and refuse others")
    for owner in (
        "triton.runtime.jit:JITFunction",
        "triton.runtime.autotuner:Autotuner",
        "triton.runtime.autotuner:Heuristics",
    )
)


def install() -> None:
    """Replaces the launch of Triton kernels, where Triton is installed."""
    for launcher in _LAUNCHERS:
        wrap(launcher, _launch)


def _launch(_run: Any, kernel: Any, *args: Any, **kwargs: Any) -> None:
    name, module = kernel_name(kernel)
    if not module.startswith(KNOWN_MODULES):
        raise RehearsalGap(f"the Triton kernel {module}.{name}", hint=_HINT)


def kernel_name(kernel: Any) -> tuple[str, str]:
    """Name and module of the Python function under a kernel's decorators (autotune, heuristics, jit)."""
    function = kernel
    while hasattr(function, "fn"):
        function = function.fn
    return getattr(function, "__name__", repr(function)), getattr(function, "__module__", "unknown")

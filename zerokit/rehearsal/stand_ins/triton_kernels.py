"""What happens when a script launches a Triton kernel: known ones are stood in for, others are named and
refused.

A Triton kernel allocates nothing: it writes into tensors that Python made before. So for kernels whose
results no Python code reads back (norms, rotary embeddings, losses), a launch that does nothing leaves memory
exactly as it is on a GPU. A kernel that nobody looked at might decide shapes, so it is refused.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

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


def install() -> bool:
    """Replaces the launch of Triton kernels. False if Triton is not installed, so that there are none."""
    if importlib.util.find_spec("triton") is None:
        return False
    for module_name, class_name in (
        ("triton.runtime.jit", "JITFunction"),
        ("triton.runtime.autotuner", "Autotuner"),
        ("triton.runtime.autotuner", "Heuristics"),
    ):
        launcher = getattr(importlib.import_module(module_name), class_name)
        if not hasattr(launcher.run, "zerokit_stand_in"):
            launcher.run = _stand_in(launcher.run)
    return True


def _stand_in(run: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(run)
    def launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
        name, module = kernel_name(kernel)
        if not module.startswith(KNOWN_MODULES):
            raise RehearsalGap(f"the Triton kernel {module}.{name}", hint=_HINT)

    launch.zerokit_stand_in = True  # type: ignore[attr-defined]
    return launch


def kernel_name(kernel: Any) -> tuple[str, str]:
    """Name and module of the Python function under a kernel's decorators (autotune, heuristics, jit)."""
    function = kernel
    while hasattr(function, "fn"):
        function = function.fn
    return getattr(function, "__name__", repr(function)), getattr(function, "__module__", "unknown")

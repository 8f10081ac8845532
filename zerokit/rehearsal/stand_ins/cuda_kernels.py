"""CUDA kernels that a script compiles with NVRTC (`torch.cuda._compile_kernel`): launched, and not run.

Nothing is compiled, so errors that NVRTC would report do not show. Checks that torch makes in Python before
a launch are made here, too.
"""

from __future__ import annotations

import re
from typing import Any

from zerokit.patches import Patch, put
from zerokit.rehearsal.stand_ins.kernel_launches import launch
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_COMPILE = Patch("torch.cuda", "_compile_kernel", "launch CUDA kernels that do nothing", since="2.8")
_SHARED_BYTES = 48 * 1024
"""Shared memory of a launch for which the kernel needs no setting (CUDA's own limit)."""
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@stand_in("torch.cuda._compile_kernel")
def install(setup: RankSetup) -> None:
    """Replace the compiling of single CUDA kernels."""
    put(_COMPILE, _compile)


def _compile(kernel_source: str, kernel_name: str, *_: Any, **__: Any) -> _Kernel:
    return _Kernel(kernel_name, reads_only(kernel_source, kernel_name))


def reads_only(source: str, name: str) -> list[bool] | None:
    """Whether each parameter of the kernel `name` is a pointer to const, through which nothing is written.

    None where the text of `source` does not show its parameters, as of a kernel that a macro makes.
    """
    text = _COMMENTS.sub(" ", source)
    bounds = r"(?:__launch_bounds__\s*\([^()]*\)\s*)?"
    found = re.search(
        rf"__global__\s+{bounds}void\s+{bounds}{re.escape(name)}\s*\(([^()]*)\)\s*(?:\{{|$)", text
    )
    if not found:
        return None
    return [_is_read(parameter) for parameter in found[1].split(",")]


def _is_read(parameter: str) -> bool:
    pointed, star, after = parameter.partition("*")
    return bool(star) and "*" not in after and re.search(r"\bconst\b", pointed) is not None


class _Kernel:
    """As `torch.cuda._utils._CudaKernel`."""

    def __init__(self, name: str, reads: list[bool] | None) -> None:
        self._name, self._reads = name, reads
        self._shared_bytes = 0

    def __call__(
        self,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        args: list[Any] | tuple[Any, ...] | None = None,
        shared_mem: int = 0,
        stream: Any | None = None,
    ) -> None:
        """Launch it. An argument that is not known to be only read counts as written.

        Raises:
            ValueError: a tensor is where a GPU cannot reach it.
            TypeError: an argument is neither a tensor nor a number.
            RuntimeError: `shared_mem` bytes are more than the kernel was set to have.
        """
        import torch

        arguments = {str(place): argument for place, argument in enumerate(args or ())}
        for argument in arguments.values():
            if isinstance(argument, torch.Tensor):
                if not argument.is_cuda and not (argument.is_cpu and argument.is_pinned()):
                    raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
            elif not isinstance(argument, int | float):
                raise TypeError(f"Unsupported argument type: {type(argument)}")
        if shared_mem >= _SHARED_BYTES and shared_mem > self._shared_bytes:
            given = f"only {self._shared_bytes} bytes configured" if self._shared_bytes else "not configured"
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but {given}. "
                "Call kernel.set_shared_memory_config(shared_mem) after compilation and before launching the "
                "kernel."
            )
        known = self._reads if self._reads is not None and len(self._reads) == len(arguments) else None
        written = [name for place, name in enumerate(arguments) if known is None or not known[place]]
        launch("CUDA kernels compiled at run time", self._name, arguments, written)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Allow launches with so many bytes of shared memory.

        Raises:
            RuntimeError: it is more than a block of the card may have.
        """
        import torch

        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        most = properties.shared_memory_per_block_optin
        if shared_mem_bytes >= _SHARED_BYTES and shared_mem_bytes > most:
            raise RuntimeError(
                f"Requested shared memory ({shared_mem_bytes} bytes) exceeds device limit ({most} bytes). "
                "Consider reducing block size or shared memory usage."
            )
        self._shared_bytes = shared_mem_bytes

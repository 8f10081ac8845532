"""Triton kernels: launched (kernel_launches.py), and not run.

Triton's own Python runs: heuristics, grids, hooks and the autotuner, which finds all configurations equally
fast and takes the first. triton_pointers.py finds the arguments that a kernel writes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from zerokit.patches import Patch, put, when_imported, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.stand_ins.kernel_launches import launch, tensors
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.stand_ins.triton_pointers import written_parameters
from zerokit.units import MIB

_RUN = Patch("triton.runtime.jit:JITFunction", "run", "launch kernels that do nothing")
_MEASURES = tuple(
    Patch("triton.testing", name, "find all kernels equally fast") for name in ("do_bench", "do_bench_cudagraph")
)
_DRIVER = "triton.runtime.driver"

_MILLISECONDS = 1.0
_CACHE_BYTES = 256 * MIB
"""What measuring allocates to clear the L2 cache (triton/backends/nvidia/driver.py,
get_empty_cache_for_benchmark)."""


@stand_in("triton")
def install(setup: RankSetup) -> None:
    """Replace the launch of Triton kernels and the driver under it, where Triton is installed."""
    wrap(_RUN, _launch)
    for measure in _MEASURES:
        put(measure, _measured)
    when_imported(_DRIVER, lambda module: module.driver.set_active(_Driver()))


def kernel_name(kernel: Any) -> str:
    """Module and name of the Python function under a kernel's decorators (autotune, heuristics, jit)."""
    function = kernel
    while hasattr(function, "fn"):
        function = function.fn
    return f"{getattr(function, '__module__', 'unknown')}.{getattr(function, '__name__', repr(function))}"


class _PartialObject:
    """An object of Triton with a part of its attributes; it names the others when a script reads them."""

    def __init__(self, description: str) -> None:
        self._description = description

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RehearsalGap(f"'{name}' of {self._description}")


def _launch(_run: Any, kernel: Any, *arguments: Any, grid: Any, warmup: bool, **given: Any) -> Any:
    name = kernel_name(kernel)
    for hook in kernel.pre_run_hooks:
        hook(*arguments, **given)
    own = {key: value for key, value in given.items() if key in kernel.signature.parameters}
    _check_options({key: value for key, value in given.items() if key not in own})
    kernel_of_launch = _PartialObject(f"the compiled Triton kernel {name}")
    if warmup:
        return kernel_of_launch
    bound = kernel.signature.bind(*arguments, **own)
    bound.apply_defaults()
    if callable(grid):
        grid(bound.arguments)
    _check_pointers(bound.arguments)
    launch("Triton kernels", name, bound.arguments, written_parameters(kernel.fn))
    return kernel_of_launch


def _check_options(options: dict[str, Any]) -> None:
    """Raise, as Triton does before it compiles, for keywords that are no options of the compiler."""
    compiler = sys.modules["triton.compiler.compiler"]
    known = vars(compiler.make_backend(_Driver().get_current_target()).parse_options(dict(options)))
    for name in options:
        if name not in known:
            raise KeyError(f"Keyword argument {name} was specified but unrecognised")


def _check_pointers(arguments: Mapping[str, Any]) -> None:
    """Raise, as Triton's launcher does, for memory that a GPU cannot reach."""
    for index, argument in enumerate(arguments.values()):
        for tensor in tensors(argument):
            if tensor.is_cpu and tensor.numel() and not tensor.is_pinned():
                raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")


def _measured(function: Any, *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """As `triton.testing.do_bench`: milliseconds, a list of them for quantiles or "all"."""
    function()
    torch.empty(_CACHE_BYTES, dtype=torch.uint8, device="cuda")
    if quantiles is not None:
        return [_MILLISECONDS] * len(quantiles)
    return [_MILLISECONDS] if return_mode == "all" else _MILLISECONDS


class _Driver(_PartialObject):
    """`triton.runtime.driver.active`, of the virtual device."""

    def __init__(self) -> None:
        super().__init__("Triton's driver")

    @property
    def utils(self) -> _Driver:
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
            "sm_clock_rate": properties.clock_rate,
            "mem_clock_rate": properties.memory_clock_rate,
            "mem_bus_width": properties.memory_bus_width,
        }

    def get_current_target(self) -> Any:
        major, minor = self.get_device_capability()
        return sys.modules["triton.backends.compiler"].GPUTarget("cuda", 10 * major + minor, 32)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return torch.cuda.get_device_capability(device)

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, _device: Any = None) -> int:
        return backend().current_stream

    def get_active_torch_device(self) -> Any:
        return torch.device("cuda", self.get_current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        return _measured

    def get_empty_cache_for_benchmark(self) -> Any:
        return torch.empty(_CACHE_BYTES, dtype=torch.uint8, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

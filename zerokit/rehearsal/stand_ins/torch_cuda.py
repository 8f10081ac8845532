"""Answers for `torch.cuda`: the virtual device in place of the CUDA driver.

It replaces the C functions below `torch.cuda` (`torch._C._cuda_*`) and the Python classes that a CPU build
leaves as dummies. On a CUDA build the same replacements keep the real GPU out.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from zerokit.patches import Patch, apply, declare, put, replace, wrap
from zerokit.rehearsal.devices import DeviceProperties, VirtualDevice
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.native.backend import FIELDS, POOLS, STATS, Backend, Model
from zerokit.rehearsal.native.clock import WorkKind
from zerokit.tables import table_of

_TABLE = table_of(__file__)
_QUIET: Sequence[str] = _TABLE["quiet"]
"""Functions of torch._C without `_cuda_` that have no effect."""
_CONSTANTS: dict[str, Any] = _TABLE["constants"]
"""Those with one answer."""
_ANSWERED: Sequence[str] = _TABLE["answered"]
_BEFORE_2_13: dict[str, Any] = _TABLE["before_2_13"]
"""Further ones of older torch."""
_DRIVER = {
    name: Patch("torch._C", f"_cuda_{name}", "ask the virtual device", until=until, read_by="torch")
    for until, names in ((None, (*_QUIET, *_CONSTANTS, *_ANSWERED)), ("2.13", _BEFORE_2_13))
    for name in names
}
_OTHER_DRIVER = Patch("torch._C", "_cuda_*", "refuse what has no answer", read_by="torch")
_STREAM_NAMES = {"ExternalStream": "Stream", "stream": "StreamContext"}
"""Names that differ in cuda_streams.py."""
_STREAMS = (
    *declare("torch.cuda", "Stream", "ExternalStream", "Event", "StreamContext", purpose="follow the clock"),
    *declare("torch.cuda", "stream", "set_stream", "current_stream", purpose="follow the clock"),
    *declare("torch.cuda", "default_stream", purpose="follow the clock"),
    *declare("torch.cuda.streams", "Stream", "Event", purpose="follow the clock"),
)


class _Silent:
    """A namespace of functions that do nothing and succeed: nvtx ranges, the CUDA runtime.

    Memory that cudaHostRegister pins is counted by the stand-in of DeepSpeed's allocator.
    """

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


class _VisibleDevices(NamedTuple):
    """The virtual device, and how many of them the process sees."""

    backend: Backend
    device: VirtualDevice
    visible: int

    def free_and_total(self, _device: Any = None) -> tuple[int, int]:
        reserved = self.backend.stat(Model.ANSWERING, "reserved_bytes", "current")
        return max(self.device.total_bytes - reserved, 0), self.device.total_bytes

    def used(self, device: Any = None) -> int:
        free, total = self.free_and_total(device)
        return total - free


_show = functools.partial(Patch, purpose="show the virtual device")
_MODULES: dict[Patch, Callable[[_VisibleDevices], Any]] = {
    _show("torch.cuda", "_lazy_init"): lambda _: lambda: None,
    _show("torch.cuda", "_initialized"): lambda _: True,
    _show("torch.cuda", "_cached_device_count"): lambda devices: devices.visible,
    _show("torch.cuda", "_exchange_device"): lambda _: _c("exchangeDevice"),
    _show("torch.cuda", "_maybe_exchange_device"): lambda _: _c("maybeExchangeDevice"),
    _show("torch.cuda", "_get_device_properties", read_by="torch.cuda"): (
        lambda devices: lambda index: devices.device.properties
    ),
    _show("torch.cuda", "_CudaDeviceProperties"): lambda _: DeviceProperties,
    _show("torch.cuda", "default_generators"): (
        lambda devices: tuple(torch.Generator("cuda") for _ in range(devices.visible))
    ),
    _show("torch.cuda", "mem_get_info"): lambda devices: devices.free_and_total,
    _show("torch.cuda", "check_error"): lambda _: lambda code: None,
    **{
        _show("torch.cuda", name): lambda _: lambda device=None: 0
        for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
    },
    _show("torch.cuda", "device_memory_used", since="2.6"): lambda devices: devices.used,
    _show("torch.cuda", "cudart"): lambda _: _Silent,
    _show("torch.cuda.memory", "mem_get_info"): lambda devices: devices.free_and_total,
    _show("torch.cuda.profiler", "cudart"): lambda _: _Silent,
    _show("torch.cuda.profiler", "check_error"): lambda _: lambda code: None,
    _show("torch.cuda.nvtx", "_nvtx"): lambda _: _Silent(),
    _show("torch.cuda.nccl", "version"): lambda _: lambda: (2, 27, 5),
    _show("torch.backends.cudnn", "is_acceptable"): lambda _: lambda tensor: False,
    _show("torch.backends.cuda", "is_built"): lambda _: lambda: True,
}
"""Names that `torch.cuda` sets in Python when it is initialized."""
_VERSION = Patch("torch.version", "cuda", "show the virtual device")
_PROFILER = Patch("torch.autograd.profiler:profile", "__init__", "profile the host alone")
_RESIZE = Patch("torch:UntypedStorage", "resize_", "resize storages of the virtual device")
_GENERATOR = Patch("torch", "Generator", "make generators of the virtual device", until="2.7")
_NEW_STORAGE = Patch("torch:UntypedStorage", "__new__", "make storages of the virtual device")


def install(backend: Backend, device: VirtualDevice, *, visible: int, index: int) -> None:
    """Make `torch.cuda` answer for the virtual device.

    Args:
        visible: number of devices that the process sees, one for each GPU of its node.
    """
    from zerokit.rehearsal.stand_ins import cuda_streams

    devices = _VisibleDevices(backend, device, visible)
    _refuse_the_rest()
    for name, answer in _answers(backend, device, visible, index).items():
        put(_DRIVER[name], answer)
    for patch in _STREAMS:
        put(patch, getattr(cuda_streams, _STREAM_NAMES.get(patch.name, patch.name)))
    apply(_GENERATOR, functools.partial(_generator_class, backend))
    for patch, answer in _MODULES.items():
        put(patch, answer(devices))
    apply(_VERSION, lambda version: version or "12.8")
    wrap(_PROFILER, _profile_host)
    _install_storage(backend)


def _profile_host(begin: Any, profiler: Any, *arguments: Any, **given: Any) -> None:
    """A profiler without CUDA events at each operator, for which a CPU build prints a trace."""
    from torch._C._profiler import ProfilerState

    begin(profiler, *arguments, **given)
    if getattr(profiler, "profiler_kind", None) == ProfilerState.KINETO_GPU_FALLBACK:
        profiler.profiler_kind = ProfilerState.KINETO


def _c(name: str) -> Any:
    return getattr(torch._C, f"_cuda_{name}")


def _generator_class(backend: Backend, real: Any) -> type:
    """`torch.Generator`, whose own constructor asks the CUDA driver for one of the GPU."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Generator(real, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return backend.new_generator() if torch.device(device).type == "cuda" else real(device)

    return Generator


def _answers(backend: Backend, device: VirtualDevice, visible: int, index: int) -> dict[str, Any]:
    """The functions of :data:`_DRIVER` by name."""

    def check(wanted: int) -> None:
        if wanted >= visible:
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal ({wanted} of {visible} devices, counted from 0)"
            )

    def select(wanted: int) -> None:
        check(wanted)
        backend.use_device(wanted)

    def enter(wanted: int) -> int:
        # Code that only queries one device after the other also comes here.
        check(wanted)
        return index

    def sleep(cycles: int) -> None:
        if backend.clock is not None:
            duration = cycles * 10**6 // device.properties.clock_rate
            backend.clock.submit(backend.current_stream, WorkKind.KERNEL, "torch.cuda._sleep", duration)

    answers = {
        "getDeviceCount": lambda: visible,
        "getDevice": lambda: index,
        "setDevice": select,
        "exchangeDevice": enter,
        "maybeExchangeDevice": lambda wanted: enter(wanted),  # Dynamo tells the two apart
        "synchronize": backend.synchronize,
        "emptyCache": backend.empty_cache,
        "memoryStats": lambda _device=0: memory_stats(backend),
        "resetPeakMemoryStats": lambda _device=0: backend.reset_peak(),
        "getCurrentRawStream": lambda _device=0: backend.current_stream,
        "sleep": sleep,
    }
    constants = {name: _constant(value) for name, value in (dict.fromkeys(_QUIET) | _CONSTANTS | _BEFORE_2_13).items()}
    return constants | answers


def _constant(value: Any) -> Any:
    return lambda *_, **__: value


_HARMLESS: Sequence[str] = _TABLE["harmless"]
"""Parts of names of a CUDA build's settings and facts, which never reach the driver."""


def _refuse_the_rest() -> None:
    """Whatever else a CUDA build would ask the driver stops with the function's name."""
    for name in dir(torch._C):
        is_harmless = any(part in name for part in _HARMLESS)
        if fnmatchcase(name, _OTHER_DRIVER.name) and not is_harmless:
            replace(torch._C, name, functools.partial(_refusing, name))


def _refusing(name: str, function: Any) -> Any:
    def refused(*_: Any, **__: Any) -> None:
        raise RehearsalGap(f"torch._C.{name}")

    return refused if isinstance(function, types.BuiltinFunctionType) else function


def memory_stats(backend: Backend) -> dict[str, Any]:
    """What torch.cuda.memory_stats_as_nested_dict returns, bytes and counts of the virtual device."""
    flat = backend.stats(Model.ANSWERING)
    nested: dict[str, Any] = {
        stat: {pool: {field: flat[f"{stat}.{pool}.{field}"] for field in FIELDS} for pool in POOLS} for stat in STATS
    }
    return {
        **nested,
        "oversize_allocations": dict.fromkeys(FIELDS, 0),
        "oversize_segments": dict.fromkeys(FIELDS, 0),
        "max_split_size": -1,
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": flat["segment.all.allocated"],
        "num_device_free": flat["segment.all.freed"],
    }


def _install_storage(backend: Backend) -> None:
    """Storages made and resized in Python, which a CPU build cannot do and a CUDA build does by itself."""

    def resize(resize_host: Any, storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return resize_host(storage, size)
        backend.resize_storage(storage, size)
        return storage

    def new(new_storage: Any, cls: Any, *arguments: Any, device: Any = None, **given: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return new_storage(cls, *arguments, **given, **({} if device is None else {"device": device}))
        size = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    wrap(_RESIZE, resize)
    wrap(_NEW_STORAGE, new)

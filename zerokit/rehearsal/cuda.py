"""Answers for `torch.cuda`: what a CUDA build would ask the driver is asked of the virtual device.

`torch.cuda` itself stays as it is; what is replaced are the C functions beneath it (`torch._C._cuda_*`) and
the few Python classes that a CPU build leaves as dummies. On a CUDA build the same replacements keep the real
GPU out.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any

from zerokit.rehearsal.devices import VirtualDevice
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.library import FIELDS, POOLS, STATS, Backend, Model
from zerokit.rehearsal.recording import Space


def install(backend: Backend, device: VirtualDevice, *, visible: int, index: int) -> None:
    """Make `torch.cuda` answer for the virtual device.

    Args:
        backend: the loaded library.
        device: what the device is said to be.
        visible: number of devices that the process sees, one for each GPU of its node.
        index: the one of them that is current; the local rank.
    """
    import torch

    answers = _answers(backend, visible, index)
    _refuse_the_rest(answers)
    for name, answer in answers.items():
        setattr(torch._C, name, answer)
    _install_streams()
    _install_module(backend, device, visible)
    _install_storage(backend)


def _answers(backend: Backend, visible: int, index: int) -> dict[str, Any]:
    """The functions of torch._C by name."""
    import torch

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def constant(value: Any) -> Any:
        return lambda *_, **__: value

    def check(wanted: int) -> None:
        if wanted >= visible:
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal ({wanted} of {visible} devices, counted from 0)"
            )

    def select(wanted: int) -> None:
        check(wanted)
        backend.use_device(wanted)

    def enter(wanted: int) -> int:
        # Code that only asks one device after the other comes by here too; tensors made there are noted.
        check(wanted)
        return index

    quiet = (
        *("init", "ipc_collect", "setMemoryFraction", "set_sync_debug_mode", "sleep"),
        *("resetAccumulatedMemoryStats", "resetPeakHostMemoryStats", "resetAccumulatedHostMemoryStats"),
        *("record_memory_history", "record_memory_history_legacy", "attach_out_of_memory_observer"),
        *("cudaCachingAllocator_set_allocator_settings", "cudaCachingAllocator_enable", "setMemoryMetadata"),
        *("set_cudnn_benchmark_limit", "lock_mutex", "unlock_mutex", "clearCublasWorkspaces"),
        *("setCublasWorkspaceSize", "setCublasLtWorkspaceSize", "resetCublasWorkspaceSize"),
        "resetCublasLtWorkspaceSize",
    )
    constants = {
        "getDeviceCount": visible,
        "getDevice": index,
        "hostMemoryStats": {},
        "isInBadFork": False,
        "isHistoryEnabled": False,
        "isCurrentStreamCapturing": False,
        "hasPrimaryContext": True,
        "canDeviceAccessPeer": True,
        "get_sync_debug_mode": 0,
        "get_cudnn_benchmark_limit": 10,
        "getCompiledVersion": 12080,
        "getArchFlags": "sm_80 sm_90 sm_100",
        "getMemoryFraction": 1.0,
        "getMemoryMetadata": "",
        "getAllocatorBackend": "native",
        "cudaCachingAllocator_is_enabled": True,
        "getCurrentBlasHandle": 0,
        "getCurrentSolverHandle": 0,
        "getCublasWorkspaceSize": 32 * 2**20,
        "getCublasLtWorkspaceSize": 32 * 2**20,
        "memorySnapshot": {
            "segments": [],
            "device_traces": [],
            "allocator_settings": {},
            "external_annotations": [],
        },
        "tunableop_is_enabled": False,
    }
    asked = {
        "setDevice": select,
        "exchangeDevice": enter,
        "maybeExchangeDevice": enter,
        "synchronize": backend.synchronize,
        "emptyCache": backend.empty_cache,
        "memoryStats": lambda _device=0: memory_stats(backend),
        "resetPeakMemoryStats": lambda _device=0: backend.reset_peak(Space.DEVICE),
        "getCurrentRawStream": lambda _device=0: backend.current_stream,
    }
    told = {name: constant(value) for name, value in constants.items()}
    answers = dict.fromkeys(quiet, nothing) | told | asked
    return {f"_cuda_{name}": answer for name, answer in answers.items()}


# Settings and facts of the build among a CUDA build's functions, which never reach the driver.
_HARMLESS = (
    *("tunableop", "record_untuned", "get_conv_benchmark", "allocationTraceback"),
    "getHipblasltVersion",
)


def _refuse_the_rest(answered: Collection[str]) -> None:
    """Whatever else a CUDA build would ask the driver stops with the function's name."""
    import torch

    def refuse(name: str) -> Any:
        def refused(*_: Any, **__: Any) -> None:
            raise RehearsalGap(f"torch._C.{name}")

        return refused

    for name in dir(torch._C):
        function = getattr(torch._C, name)
        is_harmless = name in answered or any(part in name for part in _HARMLESS)
        if name.startswith("_cuda_") and not is_harmless and isinstance(function, types.BuiltinFunctionType):
            setattr(torch._C, name, refuse(name))


def memory_stats(backend: Backend) -> dict[str, Any]:
    """What torch.cuda.memory_stats_as_nested_dict returns, bytes and counts of the virtual device."""
    flat = backend.stats(Model.ANSWERING)
    nested: dict[str, Any] = {
        stat: {pool: {field: flat[f"{stat}.{pool}.{field}"] for field in FIELDS} for pool in POOLS}
        for stat in STATS
    }
    empty = dict.fromkeys(FIELDS, 0)
    return {
        **nested,
        "oversize_allocations": empty,
        "oversize_segments": empty,
        "max_split_size": -1,
        "num_alloc_retries": flat["num_alloc_retries"],
        "num_ooms": flat["num_ooms"],
        "num_sync_all_streams": 0,
        "num_device_alloc": flat["segment.all.allocated"],
        "num_device_free": flat["segment.all.freed"],
    }


def _install_streams() -> None:
    import torch

    from zerokit.rehearsal import streams

    answers = {
        "Stream": streams.Stream,
        "ExternalStream": streams.Stream,
        "Event": streams.Event,
        "StreamContext": streams.StreamContext,
        "stream": streams.StreamContext,
        "set_stream": streams.set_stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    module: Any = torch.cuda.streams
    module.Stream, module.Event = streams.Stream, streams.Event


class _Silent:
    """A namespace whose every function succeeds and does nothing: nvtx ranges, the CUDA runtime.

    cudaHostRegister, by which DeepSpeed can pin host memory, is among them: the stand-in of DeepSpeed's
    allocator has counted that memory as pinned already.
    """

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


def _install_module(backend: Backend, device: VirtualDevice, visible: int) -> None:
    """What `torch.cuda` decides in Python when it starts up."""
    import torch

    cuda: Any = torch.cuda

    def free_and_total(_device: Any = None) -> tuple[int, int]:
        reserved = backend.stat(Model.ANSWERING, "reserved_bytes", "current")
        return max(device.total_bytes - reserved, 0), device.total_bytes

    answers = {
        "_lazy_init": lambda: None,
        "_initialized": True,
        "_cached_device_count": visible,
        "_exchange_device": torch._C._cuda_exchangeDevice,
        "_maybe_exchange_device": torch._C._cuda_maybeExchangeDevice,
        "_get_device_properties": lambda index: device.properties,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": free_and_total,
        "check_error": lambda code: None,
        "cudart": lambda: _Silent(),
        "default_generators": tuple(torch.Generator("cuda") for _ in range(visible)),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cuda.memory.mem_get_info = free_and_total
    cuda.profiler.cudart = cuda.cudart
    cuda.profiler.check_error = cuda.check_error
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    cuda.nvtx._nvtx = _Silent()
    cuda.nccl.version = lambda: (2, 27, 5)
    torch.version.cuda = torch.version.cuda or "12.8"
    torch.backends.cuda.is_built = lambda: True


def _install_storage(backend: Backend) -> None:
    """Storages made and resized in Python, which a CPU build cannot do and a CUDA build does by itself."""
    import torch

    storage_class: Any = torch.UntypedStorage
    resize_host, new_storage = storage_class.resize_, storage_class.__new__

    def resize(storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return resize_host(storage, size)
        backend.resize_storage(storage, size)
        return storage

    def new(cls: Any, *arguments: Any, device: Any = None, **given: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return new_storage(cls, *arguments, **given, **({} if device is None else {"device": device}))
        size = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    storage_class.resize_, storage_class.__new__ = resize, new

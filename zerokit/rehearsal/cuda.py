"""Answers for `torch.cuda`: the functions that a CUDA build would ask the driver, asked of the virtual device.

`torch.cuda` itself stays as it is; what is replaced are the C functions beneath it (`torch._C._cuda_*`) and the few
Python classes that a CPU build leaves as dummies. On a CUDA build the same replacements keep the real GPU out.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from zerokit.rehearsal.library import FIELDS, POOLS, STATS, Backend, Model
from zerokit.rehearsal.recording import Space


@dataclass(frozen=True)
class VirtualDevice:
    """The GPU that the rehearsal shows. The default is an H100 SXM (data sheet; `nvidia-smi` and torch's own report)."""

    name: str = "NVIDIA H100 80GB HBM3"
    total_bytes: int = 85_028_896_768
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    shared_memory_bytes: int = 232_448
    l2_cache_bytes: int = 50 * 2**20

    @property
    def properties(self) -> types.SimpleNamespace:
        """What torch.cuda.get_device_properties returns."""
        return types.SimpleNamespace(
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=self.total_bytes,
            multi_processor_count=self.multiprocessors,
            is_integrated=0,
            is_multi_gpu_board=0,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=self.shared_memory_bytes - 1024,
            shared_memory_per_multiprocessor=self.shared_memory_bytes + 1024,
            L2_cache_size=self.l2_cache_bytes,
            clock_rate=1980000,
            memory_clock_rate=2619000,
            memory_bus_width=5120,
            pci_bus_id=0,
            pci_device_id=0,
            pci_domain_id=0,
            uuid="00000000-0000-0000-0000-000000000000",
            gcnArchName="",
        )


def install(backend: Backend, device: VirtualDevice, *, visible: int, index: int) -> None:
    """Make `torch.cuda` answer for the virtual device.

    Args:
        backend: the loaded library.
        device: what the device is said to be.
        visible: number of devices that the process sees, one for each GPU of its node.
        index: the one of them that is current; the local rank.
    """
    import torch

    for name, answer in _answers(backend, device, visible, index).items():
        setattr(torch._C, name, answer)
    _install_streams(backend, index)
    _install_module(backend, device, visible)
    _install_storage(backend)


def _answers(backend: Backend, device: VirtualDevice, visible: int, index: int) -> dict[str, Any]:
    """The functions of torch._C by name."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def constant(value: Any) -> Any:
        return lambda *_, **__: value

    def reset_peak(_device: int = 0) -> None:
        backend.reset_peak(Space.DEVICE)

    quiet = (
        *(
            "_cuda_init",
            "_cuda_ipc_collect",
            "_cuda_setMemoryFraction",
            "_cuda_set_sync_debug_mode",
            "_cuda_sleep",
        ),
        *(
            "_cuda_resetAccumulatedMemoryStats",
            "_cuda_resetPeakHostMemoryStats",
            "_cuda_clearCublasWorkspaces",
        ),
        *(
            "_cuda_resetAccumulatedHostMemoryStats",
            "_cuda_record_memory_history",
            "_cuda_attach_out_of_memory_observer",
        ),
        *("_cuda_cudaCachingAllocator_set_allocator_settings", "_cuda_setMemoryMetadata"),
        *("_cuda_record_memory_history_legacy", "_cuda_cudaCachingAllocator_enable"),
        *("_cuda_set_cudnn_benchmark_limit", "_cuda_lock_mutex", "_cuda_unlock_mutex"),
    )
    return {
        **dict.fromkeys(quiet, nothing),
        "_cuda_getDeviceCount": constant(visible),
        "_cuda_getDevice": constant(index),
        "_cuda_setDevice": nothing,
        "_cuda_exchangeDevice": constant(index),
        "_cuda_maybeExchangeDevice": constant(index),
        "_cuda_synchronize": backend.synchronize,
        "_cuda_emptyCache": backend.empty_cache,
        "_cuda_memoryStats": lambda _device=0: memory_stats(backend),
        "_cuda_hostMemoryStats": constant({}),
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_isInBadFork": constant(False),
        "_cuda_isHistoryEnabled": constant(False),
        "_cuda_isCurrentStreamCapturing": constant(False),
        "_cuda_hasPrimaryContext": constant(True),
        "_cuda_canDeviceAccessPeer": constant(True),
        "_cuda_get_sync_debug_mode": constant(0),
        "_cuda_get_cudnn_benchmark_limit": constant(10),
        "_cuda_getCompiledVersion": constant(12080),
        "_cuda_getArchFlags": constant("sm_80 sm_90 sm_100"),
        "_cuda_getMemoryFraction": constant(1.0),
        "_cuda_getAllocatorBackend": constant("native"),
        "_cuda_cudaCachingAllocator_is_enabled": constant(True),
        "_cuda_getCurrentRawStream": lambda _device=0: backend.current_stream,
        "_cuda_getCurrentBlasHandle": constant(0),
        "_cuda_memorySnapshot": constant({"segments": [], "device_traces": []}),
        "_cuda_tunableop_is_enabled": constant(False),
    }


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


def _install_streams(backend: Backend, index: int) -> None:
    """Streams and events that order nothing: everything has happened when it is asked for.

    The library's current stream follows, since the allocator keeps free blocks by stream.
    """
    import torch

    class Stream(torch.Stream):
        def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Stream:
            if "stream_id" in given:
                return super().__new__(cls, **given)
            return super().__new__(cls, device=torch.device("cuda", index), priority=priority)

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        def wait_event(self, event: Any) -> None: ...
        def wait_stream(self, stream: Any) -> None: ...
        def synchronize(self) -> None: ...
        def query(self) -> bool:
            return True

        def record_event(self, event: Any = None) -> Any:
            return event or Event()

        def __enter__(self) -> Any:
            self._contexts = [*getattr(self, "_contexts", []), StreamContext(self)]
            self._contexts[-1].__enter__()
            return self

        def __exit__(self, *_: Any) -> None:
            self._contexts.pop().__exit__()

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, stream: Any = None) -> None: ...
        def wait(self, stream: Any = None) -> None: ...
        def synchronize(self) -> None: ...
        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Any) -> float:
            return 1.0

    class StreamContext:
        def __init__(self, stream: Any) -> None:
            self.stream = stream
            self._before: list[int] = []

        def __enter__(self) -> None:
            self._before.append(backend.current_stream)
            if self.stream is not None:
                backend.current_stream = self.stream.stream_id

        def __exit__(self, *_: Any) -> None:
            backend.current_stream = self._before.pop()

    def stream_of(number: int) -> Any:
        return Stream(stream_id=number, device_index=index, device_type=1)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            backend.current_stream = stream.stream_id

    answers = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "set_stream": set_stream,
        "current_stream": lambda device=None: stream_of(backend.current_stream),
        "default_stream": lambda device=None: stream_of(0),
        "ExternalStream": Stream,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    streams = torch.cuda.streams
    streams.Stream, streams.Event = Stream, Event  # type: ignore[assignment, misc]


class _Silent(types.ModuleType):
    """A module whose every function does nothing: nvtx ranges, profiler marks."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


def _install_module(backend: Backend, device: VirtualDevice, visible: int) -> None:
    """What `torch.cuda` decides in Python when it starts up."""
    import torch

    cuda = torch.cuda

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
        "get_device_properties": lambda index=None: device.properties,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": free_and_total,
        "cudart": lambda: _Silent("cudart"),
        "default_generators": tuple(torch.Generator("cuda") for _ in range(visible)),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cuda.memory.mem_get_info = free_and_total
    cuda.nvtx._nvtx = _Silent("nvtx")
    cuda.nccl.version = lambda: (2, 27, 5)  # type: ignore[assignment]
    torch.version.cuda = torch.version.cuda or "12.8"
    torch.backends.cuda.is_built = lambda: True


def _install_storage(backend: Backend) -> None:
    """`UntypedStorage.resize_` of CUDA memory is compiled out of CPU builds."""
    import torch

    resize_host = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if storage.device.type != "cuda":
            return resize_host(storage, size)
        backend.resize_storage(storage, size)
        return storage

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

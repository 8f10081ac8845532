"""CUDA streams and events that order nothing: everything has happened when it is asked for.

The library's current stream follows `torch.cuda.stream`, since the allocator keeps free blocks by stream.
Import it once the backend is loaded, for it imports torch.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

import torch
from torch import _streambase

from zerokit.rehearsal.native.backend import backend


class Stream(torch.Stream):
    """`torch.cuda.Stream`, from torch's pool of streams or for the `stream_id` given."""

    _contexts: list[StreamContext]

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Stream:
        if "stream_id" in given:
            return super().__new__(cls, **given)
        own = torch.device("cuda", torch.cuda.current_device())
        return super().__new__(cls, device=own, priority=priority)

    def __init__(self, *_: Any, **__: Any) -> None:
        self._contexts = []

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
        context = StreamContext(self)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *_: Any) -> None:
        self._contexts.pop().__exit__()


class Event:
    """`torch.cuda.Event`."""

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
    """`torch.cuda.stream(stream)`; None leaves the stream as it is."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._around: list[int] = []

    def __enter__(self) -> None:
        self._around.append(backend().current_stream)
        set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        backend().current_stream = self._around.pop()


def set_stream(stream: Any) -> None:
    """Make `stream` current on this thread."""
    if stream is not None:
        backend().current_stream = stream.stream_id


def current_stream(device: Any = None) -> Stream:
    """The stream that is current on this thread."""
    return _numbered(backend().current_stream)


def default_stream(device: Any = None) -> Stream:
    """Stream 0."""
    return _numbered(0)


def _numbered(number: int) -> Stream:
    cuda = 1  # c10::DeviceType::CUDA
    return Stream(stream_id=number, device_index=torch.cuda.current_device(), device_type=cuda)


for _base, _own in ((_streambase._StreamBase, Stream), (_streambase._EventBase, Event)):
    if isinstance(_base, ABCMeta):  # before torch 2.6, whose Dynamo asks for it
        _base.register(_own)

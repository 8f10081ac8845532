"""CUDA streams and events on the rank's virtual clock. Without a clock every event has already happened.

The library's current stream follows `torch.cuda.stream`, because the allocator keeps free blocks by stream.
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

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        if clock := backend().clock:
            clock.synchronize_stream(self.stream_id)

    def query(self) -> bool:
        return bool(self.record_event().query())

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Any:
        context = StreamContext(self)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *_: Any) -> None:
        self._contexts.pop().__exit__()


class Event:
    """`torch.cuda.Event`: the last one that was recorded with it, if any and if there is a clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.recorded: int | None = None

    def record(self, stream: Any = None) -> None:
        if clock := backend().clock:
            self.recorded = clock.record(_number(stream))

    def wait(self, stream: Any = None) -> None:
        clock = backend().clock
        if clock and self.recorded is not None:
            clock.wait(_number(stream), self.recorded)

    def synchronize(self) -> None:
        clock = backend().clock
        if clock and self.recorded is not None:
            clock.synchronize(self.recorded)

    def query(self) -> bool:
        clock = backend().clock
        if not clock or self.recorded is None:
            return True
        clock.read()  # whoever asks again and again has time pass by it
        return clock.has_happened(self.recorded)

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""
        clock = backend().clock
        if not clock:
            return 1.0
        if self.recorded is None or end.recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        begun, ended = clock.time_of(self.recorded), clock.time_of(end.recorded)
        if begun is None or ended is None:
            kind = getattr(torch, "AcceleratorError", RuntimeError)  # a RuntimeError, from torch 2.8 on
            raise kind("CUDA error: device not ready")
        return (ended - begun) / 1e6


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


def _number(stream: Any) -> int:
    return backend().current_stream if stream is None else int(stream.stream_id)


def _numbered(number: int) -> Stream:
    cuda = 1  # c10::DeviceType::CUDA
    return Stream(stream_id=number, device_index=torch.cuda.current_device(), device_type=cuda)


for _base, _own in ((_streambase._StreamBase, Stream), (_streambase._EventBase, Event)):
    if isinstance(_base, ABCMeta):  # before torch 2.6, whose Dynamo asks for it
        _base.register(_own)

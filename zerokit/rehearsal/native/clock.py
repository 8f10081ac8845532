"""The clock of a rehearsed rank, seen from Python: a face of `native/timing.cpp`. Times are nanoseconds."""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from zerokit.rehearsal.native.c_functions import declare


class WorkKind(enum.IntEnum):
    """What is done on a stream, or by the host."""

    KERNEL = 0
    COPY = 1
    """Between host and device."""
    COLLECTIVE = 2
    OPTIMIZER = 3
    """Of the host."""
    WAITING = 4
    """The host, for the device."""
    RESERVING = 5
    """The host, in cudaMalloc and cudaFree."""
    MEETING = 6
    """A collective, for ranks that have not come to it yet."""
    HOST_OPERATOR = 8
    """Of the host, on its own tensors."""


HOST_STREAM = -1
"""In place of a stream: what the host does itself."""
FIRST_COMMUNICATOR = 1000
"""The streams of groups of ranks have numbers from here on, above those of torch's pools."""
FIRST_DRIVE = 900
"""The streams of the node's drives, which the device does not wait for (`native/streams.h`)."""
SIZE_OF_ACT = 48
"""Bytes of one of :meth:`Clock.acts`."""


class Cost(NamedTuple):
    """What an operator costs."""

    duration: int
    """On the stream; 0: nothing is launched."""
    launch: int
    """Of the host."""
    kind: WorkKind = WorkKind.KERNEL
    waits: bool = False
    """Whether the host then waits for the stream."""
    host: int = 0
    """What the host itself works, before it launches."""


class CallCost(NamedTuple):
    """What a Python function costs the host."""

    call: int
    frame: int = 0
    """Of each frame that it calls."""
    operator: int = 0
    """Of each operator that it calls, besides its launch."""
    is_pass: bool = False
    """Whether it runs a backward pass."""


class Uncounted(enum.IntEnum):
    """A function that takes no time (`native/host_work.cpp`)."""

    OWN = -1
    """Of zerokit: it is no part of the script, nor is a function that it calls."""
    IMPORT = -2
    """A module of a library that is imported: no Python beneath it takes time. Some libraries go through sets of
    classes then, in the order of addresses."""


class HostCosts(NamedTuple):
    """What Python and autograd cost the host."""

    of_code: Callable[[CodeType], CallCost | Uncounted]
    """Of a function, asked for once."""
    coldness: Sequence[float]
    """Factors of a call, as of :func:`zerokit.hardware.costs.python_calls.coldness`."""
    sizes: Sequence[float]
    """Factors of all by the size of a pass, as of :func:`zerokit.hardware.costs.python_calls.sizes`."""
    smallest: int
    """The size of a pass below which the first of :attr:`sizes` counts."""
    node_made: int
    """Of each node of a graph, when it is made."""
    node_run: int
    """Of each node in the backward pass."""
    node_cold: int
    """The same, times its coldness."""


class _Cost(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in Cost._fields]


_ASKER = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.POINTER(_Cost))
_CODE_COST = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object, ctypes.POINTER(ctypes.c_int64))
_NUMBER = ctypes.c_int64


class Clock:
    """Virtual time of the rank: of the host, which submits work, and of the streams, which do it in order.

    Args:
        beside_collective: factor by which kernels take longer while a collective runs on another stream.
        can_block: whether the driver follows CUDA_LAUNCH_BLOCKING.
    """

    def __init__(self, library: ctypes.CDLL, beside_collective: float, can_block: bool) -> None:
        self.library = library
        self.beside_collective = round(1000 * beside_collective)
        """In thousandths."""
        self._asker: Any = None  # ctypes does not keep callbacks alive
        self._code_cost: Any = None
        declare(library, "zk_clock_")
        library.zk_clock_start(self.beside_collective, can_block)

    def set_operator_costs(self, cost: Callable[[Sequence[int]], Cost]) -> None:
        """Time operators of device and host: `cost` is called once for each key (`native/timing.cpp`)."""

        def ask(key: Any, length: int, answer: Any) -> None:
            answer[0] = _Cost(*map(int, cost(key[:length])))

        self._asker = _ASKER(ask)
        self.library.zk_clock_ask(self._asker)

    def forget_operator_costs(self) -> None:
        """Forget all costs, which have changed."""
        self.library.zk_clock_ask_again()

    def set_driver_costs(self, reserve: int, reserve_gib: int, give_back: int) -> None:
        """What cudaMalloc costs the host, besides for each GiB, and cudaFree."""
        self.library.zk_clock_driver_costs(reserve, reserve_gib, give_back)

    def count_host_work(self, costs: HostCosts) -> bool:
        """Have the host take time for Python and autograd (`native/host_work.cpp`).

        Returns:
            whether this Python reports calls.
        """

        def ask(code: CodeType, more: Any) -> int:
            found = costs.of_code(code)
            if isinstance(found, Uncounted):
                return found
            more[0], more[1], more[2] = found.frame, found.operator, found.is_pass
            return found.call

        def in_thousandths(factors: Sequence[float]) -> tuple[Any, int]:
            return (_NUMBER * len(factors))(*(round(1000 * factor) for factor in factors)), len(factors)

        self._code_cost = _CODE_COST(ask)
        numbers = (costs.node_made, costs.node_run, costs.node_cold)
        factors = (*in_thousandths(costs.coldness), *in_thousandths(costs.sizes))
        # With Python's lock, which other functions of the library are called without.
        pointer = ctypes.POINTER(_NUMBER)
        types: tuple[Any, ...] = (_CODE_COST, *[_NUMBER] * 3, *[pointer, _NUMBER] * 2, _NUMBER)
        count = ctypes.PYFUNCTYPE(ctypes.c_int, *types)(("zk_clock_count_host_work", self.library))
        return bool(count(self._code_cost, *numbers, *factors, costs.smallest))

    @property
    def is_blocking(self) -> bool:
        """Whether CUDA_LAUNCH_BLOCKING has the host wait for each kernel."""
        return bool(self.library.zk_clock_is_blocking())

    # ---- the host
    @property
    def now(self) -> int:
        """How far the host is."""
        return int(self.library.zk_clock_now())

    def read(self) -> int:
        """:attr:`now`; each read takes a little time, so that loops that wait for a time end."""
        return int(self.library.zk_clock_read())

    def advance(self, duration: int) -> None:
        """Let the host spend time."""
        self.library.zk_clock_advance(duration)

    def work_on_host(self, kind: WorkKind, name: str, duration: int) -> None:
        """Have the host itself work, as a span of the recording."""
        self.library.zk_clock_work_on_host(kind, name.encode(), duration)

    # ---- the device
    def submit(self, stream: int, kind: WorkKind, name: str, duration: int, *, meeting: int = -1) -> None:
        """Give `stream` work; `meeting` is the number of a collective with other ranks."""
        self.library.zk_clock_submit(stream, kind, name.encode(), duration, meeting)

    def record(self, stream: int) -> int:
        """The event that happens once `stream` has done its work so far."""
        return int(self.library.zk_clock_record(stream))

    def wait(self, stream: int, event: int) -> None:
        """Have later work of `stream` wait for `event`."""
        self.library.zk_clock_wait(stream, event)

    # ---- the host and the device
    def has_happened(self, event: int) -> bool:
        """Whether `event` has happened at the host's time."""
        return bool(self.library.zk_clock_has_happened(event))

    def time_of(self, event: int) -> int | None:
        """When `event` happened, None if it has not yet."""
        time = int(self.library.zk_clock_time_of(event))
        return None if time < 0 else time

    def synchronize(self, event: int) -> None:
        """Have the host wait for `event`."""
        self.library.zk_clock_synchronize(event)

    def synchronize_stream(self, stream: int) -> None:
        """Have the host wait for the work of `stream`."""
        self.library.zk_clock_synchronize_stream(stream)

    def synchronize_all(self) -> None:
        """Have the host wait for all streams of the device, which drives are not."""
        self.library.zk_clock_synchronize_all()

    @property
    def streams(self) -> list[int]:
        """The streams that have had work."""
        room = int(self.library.zk_clock_streams(None, 0))
        numbers = (ctypes.c_int64 * room)()
        return list(numbers[: min(room, int(self.library.zk_clock_streams(numbers, room)))])

    def span_count(self) -> int:
        """Number of spans of streams and host so far."""
        return int(self.library.zk_clock_span_count())

    def set_capturing(self, is_capturing: bool) -> None:
        """Whether launches go into a CUDA graph from here on, which CUDA_LAUNCH_BLOCKING does not hold up."""
        self.library.zk_clock_set_capturing(is_capturing)

    # ---- what is done again, beside other ranks (together.py)
    def keep_acts(self) -> None:
        """Have :meth:`acts` know all that the host does from here on; call it at the start."""
        self.library.zk_clock_keep_acts()

    def acts(self) -> bytes:
        """All that the host did."""
        count = int(self.library.zk_clock_act_count())
        acts = ctypes.create_string_buffer(SIZE_OF_ACT * count)
        self.library.zk_clock_copy_acts(acts, count)
        return acts.raw

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """Let operators of this thread take no time: they replace other work."""
        self.library.zk_clock_set_timing(0)
        try:
            yield
        finally:
            self.library.zk_clock_set_timing(1)

"""The clock of a rehearsed rank, seen from Python: a face of `native/timing.cpp`. Times are nanoseconds."""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple


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
    DATA = 7
    """Of the host, for the next batch."""
    HOST_OPERATOR = 8
    """Of the host, on its own tensors."""


HOST = -1
"""In place of a stream: what the host does itself."""
FIRST_COMMUNICATOR = 1000
"""The streams of groups of ranks have numbers from here on, above those of torch's pools."""
FIRST_DRIVE = 900
"""Likewise those of the node's drives, which the device does not wait for (`native/streams.h`)."""
SIZE_OF_ACT = 48
"""Bytes of one of :meth:`Clock.acts`."""


class Price(NamedTuple):
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


class _Price(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in Price._fields]


_ASKER = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.POINTER(_Price))
_CODE_PRICER = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object)
_OF_NO_TIME = -1


class Clock:
    """Virtual time of the rank: of the host, which submits work, and of the streams, which do it in order.

    Args:
        library: the loaded library.
        beside_collective: factor by which kernels take longer while a collective runs on another stream.
    """

    def __init__(self, library: ctypes.CDLL, beside_collective: float) -> None:
        self.library = library
        self.beside_collective = round(1000 * beside_collective)
        """In thousandths."""
        self._asker: Any = None  # ctypes does not keep callbacks alive
        self._code_pricer: Any = None
        _declare(library)
        library.zk_clock_start(self.beside_collective)

    def price_operators(self, price: Callable[[Sequence[int]], Price]) -> None:
        """Time the operators of device and host: `price` is asked once for each key (`native/timing.cpp`)."""

        def ask(key: Any, length: int, answer: Any) -> None:
            answer[0] = _Price(*map(int, price(key[:length])))

        self._asker = _ASKER(ask)
        self.library.zk_clock_ask(self._asker)

    def price_operators_again(self) -> None:
        """Forget what has been asked until now: prices have changed."""
        self.library.zk_clock_ask_again()

    def price_driver(self, reserve: int, reserve_gib: int, give_back: int) -> None:
        """What cudaMalloc costs the host, besides for each GiB, and cudaFree."""
        self.library.zk_clock_driver_costs(reserve, reserve_gib, give_back)

    def count_host_work(
        self, price: Callable[[CodeType], int | None], *, node_made: int, node_run: int
    ) -> bool:
        """Have the host take time for Python and autograd (`native/host_work.cpp`).

        Args:
            price: of a call of a function, asked once for each; None: neither it nor what it calls itself is
                part of the script.
            node_made: of each node of a graph, when it is made.
            node_run: of each, in the backward pass.

        Returns:
            whether this Python tells of calls.
        """

        def ask(code: CodeType) -> int:
            found = price(code)
            return _OF_NO_TIME if found is None else found

        self._code_pricer = _CODE_PRICER(ask)
        # With Python's lock, which other functions of the library are called without.
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int, _CODE_PRICER, ctypes.c_int64, ctypes.c_int64)
        count = prototype(("zk_clock_count_host_work", self.library))
        return bool(count(self._code_pricer, node_made, node_run))

    # ---- the host
    @property
    def now(self) -> int:
        """How far the host is."""
        return int(self.library.zk_clock_now())

    def read(self) -> int:
        """:attr:`now` for whoever may wait for a time: each look takes a little, so that such loops end."""
        return int(self.library.zk_clock_read())

    def advance(self, duration: int) -> None:
        """Let the host spend time."""
        self.library.zk_clock_advance(duration)

    def work_on_host(self, kind: WorkKind, name: str, duration: int) -> None:
        """Have the host itself work, and write it down."""
        self.library.zk_clock_work_on_host(kind, name.encode(), duration)

    # ---- the device
    def submit(self, stream: int, kind: WorkKind, name: str, duration: int, *, meeting: int = -1) -> None:
        """Give `stream` something to do; `meeting`: the number of what other ranks do with this one."""
        self.library.zk_clock_submit(stream, kind, name.encode(), duration, meeting)

    def record(self, stream: int) -> int:
        """The event that happens once `stream` has done all that it was given so far."""
        return int(self.library.zk_clock_record(stream))

    def wait(self, stream: int, event: int) -> None:
        """Have what `stream` is given from now on wait for `event`."""
        self.library.zk_clock_wait(stream, event)

    # ---- the host and the device
    def has_happened(self, event: int) -> bool:
        """Whether `event` has, by the time that it is for the host."""
        return bool(self.library.zk_clock_has_happened(event))

    def time_of(self, event: int) -> int | None:
        """When `event` happened, None if it has not yet."""
        time = int(self.library.zk_clock_time_of(event))
        return None if time < 0 else time

    def synchronize(self, event: int) -> None:
        """Have the host wait for `event`."""
        self.library.zk_clock_synchronize(event)

    def synchronize_stream(self, stream: int) -> None:
        """Have the host wait until `stream` has done all that it was given."""
        self.library.zk_clock_synchronize_stream(stream)

    def synchronize_all(self) -> None:
        """Have the host wait for all streams of the device, which drives are not."""
        self.library.zk_clock_synchronize_all()

    @property
    def streams(self) -> list[int]:
        """Those that have been given something."""
        room = int(self.library.zk_clock_streams(None, 0))
        numbers = (ctypes.c_int64 * room)()
        return list(numbers[: min(room, int(self.library.zk_clock_streams(numbers, room)))])

    def span_count(self) -> int:
        """How much has been written down of what streams and host did."""
        return int(self.library.zk_clock_span_count())

    # ---- what is done again, beside other ranks (together.py)
    def keep_acts(self) -> None:
        """From here on, which is to be the start, have :meth:`acts` know all that the host does."""
        self.library.zk_clock_keep_acts()

    def acts(self) -> bytes:
        """All that the host did."""
        count = int(self.library.zk_clock_act_count())
        acts = ctypes.create_string_buffer(SIZE_OF_ACT * count)
        self.library.zk_clock_copy_acts(acts, count)
        return acts.raw

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """Let operators of this thread take no time: they stand for something else."""
        self.library.zk_clock_set_timing(0)
        try:
            yield
        finally:
            self.library.zk_clock_set_timing(1)


def _declare(library: ctypes.CDLL) -> None:
    integer, long, text, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
    signatures = {
        "zk_clock_start": (None, [long]),
        "zk_clock_ask": (None, [_ASKER]),
        "zk_clock_ask_again": (None, []),
        "zk_clock_driver_costs": (None, [long, long, long]),
        "zk_clock_set_timing": (None, [integer]),
        "zk_clock_now": (long, []),
        "zk_clock_read": (long, []),
        "zk_clock_advance": (None, [long]),
        "zk_clock_work_on_host": (None, [integer, text, long]),
        "zk_clock_submit": (None, [integer, integer, text, long, integer]),
        "zk_clock_keep_acts": (None, []),
        "zk_clock_act_count": (long, []),
        "zk_clock_copy_acts": (None, [pointer, long]),
        "zk_clock_record": (long, [integer]),
        "zk_clock_wait": (None, [integer, long]),
        "zk_clock_has_happened": (integer, [long]),
        "zk_clock_time_of": (long, [long]),
        "zk_clock_synchronize": (None, [long]),
        "zk_clock_synchronize_stream": (None, [integer]),
        "zk_clock_synchronize_all": (None, []),
        "zk_clock_streams": (long, [pointer, long]),
        "zk_clock_span_count": (long, []),
        "zk_clock_copy_spans": (None, [pointer, long]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments

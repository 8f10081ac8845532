"""The time of a rehearsed rank: the backend's clock, and what work costs on it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from zerokit.code_origin import is_in_library
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs import python_calls
from zerokit.hardware.costs.card_costs import CardCosts, Copy
from zerokit.hardware.costs.collectives import Collective
from zerokit.hardware.costs.kernels import Kernel
from zerokit.rehearsal.call_sites import PACKAGE
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.native.clock import (
    FIRST_COMMUNICATOR,
    FIRST_DRIVE,
    CallCost,
    Clock,
    Cost,
    HostCosts,
    Uncounted,
    WorkKind,
)
from zerokit.rehearsal.recording import SPAN, Array
from zerokit.rehearsal.timing.operators import Call, Operators, entries, to_ns
from zerokit.rehearsal.watching.watcher import StepEnd, Watcher
from zerokit.units import GIB, MIB

if TYPE_CHECKING:
    from zerokit.rehearsal.native.backend import Backend


Meeting = tuple[str, ...]
"""``("group", name)`` or ``("pair", source, target, tag)``; recorded with the number of the call."""


class Meetings:
    """The collectives that other ranks take part in, in the order of this rank."""

    def __init__(self) -> None:
        self._calls: Counter[Meeting] = Counter()
        self.all: list[Meeting] = []

    def come(self, meeting: Meeting) -> int:
        """Add one, and return its place."""
        self.all.append((*meeting, str(self._calls[meeting])))
        self._calls[meeting] += 1
        return len(self.all) - 1


_KINDS: dict[str, Collective] = {
    **{"all_gather": "all_gather", "gather": "all_gather", "scatter": "broadcast"},
    **{"reduce_scatter": "reduce_scatter", "all_reduce": "all_reduce", "reduce": "broadcast"},
    **{"broadcast": "broadcast", "all_to_all": "all_to_all", "send": "send_recv", "recv": "send_recv"},
}
"""What the collectives of torch.distributed are to NCCL; a reduce to one rank is a broadcast backwards."""
_DRIVES: dict[Copy, int] = {"nvme_read": FIRST_DRIVE, "nvme_write": FIRST_DRIVE + 1}
"""Their streams."""
_NETWORKS = (10, 25, 100, 400)
"""Gbit/s of a node, for which a step is predicted too if its network is not known."""
_GRAPH = "CUDA graph"
_DEVICE_WORK = (WorkKind.KERNEL, WorkKind.COPY, WorkKind.COLLECTIVE)


class Timing:
    """The time of the rank, if time is rehearsed."""

    time: RankTime | None = None


def rank_time() -> RankTime | None:
    """That of the rank that this process plays; None if only memory is rehearsed."""
    return rank_context().state(Timing).time


def take_time(name: str, *moved: Any) -> None:
    """Have a kernel of a stand-in take the time of reading and writing `moved`, if time is rehearsed.

    `moved` has tensors, or lists of them, once for each time that they are read or written; the rest is
    ignored.
    """
    if time := rank_time():
        time.kernel(name, _bytes(moved))


def _bytes(values: Any) -> int:
    if isinstance(values, list | tuple):
        return sum(_bytes(value) for value in values)
    return int(getattr(values, "nbytes", 0))


def untimed() -> AbstractContextManager[None]:
    """A context in which operators take no time: they stand for something else."""
    time = rank_time()
    return nullcontext() if time is None else time.clock.untimed()


class RankTime(Watcher):
    """Gives the work of a rank its cost on the clock.

    `backend` is not configured yet. `beside_others`: whether other ranks are rehearsed at the same time.
    """

    def __init__(self, backend: Backend, costs: CardCosts, cluster: Cluster, *, beside_others: bool = False) -> None:
        rank_context().state(Timing).time = self
        self.costs = costs
        self.without_cost: dict[str, str] = {}
        """Operators that took no time but their launch, and the error."""
        self.host_threads: int | None = None
        """Of this rank, for CPU work; None: as many as the machine has cores."""
        self._backend = backend
        self._gpus_per_node = cluster.gpus_per_node
        self._local_ranks = cluster.local_ranks
        self._operators = Operators(costs, cluster.local_ranks, lambda: self.host_threads)
        self._communicators = 0
        self._places: dict[int, tuple[int, int]] = {}
        """GPUs of a node and nodes of each communicator."""
        self._of_collectives: dict[tuple[Collective, int, int, int], list[int]] = {}
        """Their nanoseconds, with each of the networks."""
        self._networks = [costs]
        self.meetings_by_network: dict[int, list[int]] = {}
        """As of :class:`RankTimes`."""
        if beside_others and cluster.num_nodes > 1 and costs.is_network_assumed:
            self.meetings_by_network = {speed: [] for speed in _NETWORKS if speed != costs.network_gbit_s}
            self._networks += map(costs.with_network, self.meetings_by_network)
        self.meetings = Meetings()
        self.step_end_events: list[list[int]] = []
        """As of :class:`RankTimes`."""
        self.clock: Clock = backend.start_clock(costs.beside_collective, costs.gpu.platform == "cuda")
        if beside_others:
            self.clock.keep_acts()
        self.clock.set_operator_costs(self._cost)
        smallest = costs.cuda_malloc(2 * MIB)
        of_a_gib = costs.cuda_malloc(2 * MIB + GIB) - smallest
        self.clock.set_driver_costs(to_ns(smallest), to_ns(of_a_gib), to_ns(costs.cuda_free()))

    def have_threads(self, threads: int | None) -> None:
        """Cost CPU work by so many threads from here on."""
        if threads != self.host_threads:
            self.host_threads = threads
            self.clock.forget_operator_costs()

    def _cost(self, key: Sequence[int]) -> Cost:
        name = self._backend.operator_names()[key[0]]
        try:
            return self._operators.cost(Call(name, tuple(entries(key))))
        except Exception as error:  # a library's callback cannot raise; the report shows it
            self.without_cost.setdefault(name, f"{type(error).__name__}: {error}")
            return Cost(0, to_ns(self.costs.launch(name)))

    def count_host_work(self) -> None:
        """Have the script's Python and autograd's nodes take time from here on."""
        unit = self.costs.python_call()
        counts = self.clock.count_host_work(
            HostCosts(
                self._python_call_cost,
                python_calls.coldness(),
                python_calls.sizes(),
                max(to_ns(python_calls.SMALLEST_PASS * unit), 1),
                node_made=to_ns(self.costs.autograd_node("made")),
                node_run=to_ns(self.costs.autograd_node("run")),
                node_cold=to_ns(python_calls.cold_node() * unit),
            )
        )
        if not counts:
            self.without_cost["calls of Python functions"] = "this Python does not report them"

    def _python_call_cost(self, code: CodeType) -> CallCost | Uncounted:
        if code.co_filename.startswith(PACKAGE):
            return Uncounted.OWN
        if code.co_name == "<module>" and is_in_library(code.co_filename):
            main = getattr(sys.modules.get("__main__"), "__file__", None)  # a library's module may be what is run
            if code.co_filename != main:
                return Uncounted.IMPORT
        unit = self.costs.python_call()
        call, frame, operator = (to_ns(units * unit) for units in python_calls.function_cost(code))
        return CallCost(call, frame, operator, python_calls.function_name(code) == python_calls.PASS)

    # ---- work of stand-ins in Python
    def _launch(self, name: str, duration: int) -> None:
        """A kernel on the current stream that takes so many nanoseconds."""
        self.clock.advance(to_ns(self.costs.launch(name)))
        self.clock.submit(self._backend.current_stream, WorkKind.KERNEL, name, duration)

    def kernel(self, name: str, bytes_moved: int) -> None:
        """A kernel that reads and writes so many bytes."""
        self._launch(name, to_ns(self.costs.memory_bound(bytes_moved, name)))

    def attention(self, kernel: Kernel, backward: bool, *shape: Any) -> None:
        """Attention of another package; arguments as of `CardCosts.attention`."""
        name = f"{kernel} backward" if backward else kernel
        self._launch(name, to_ns(self.costs.attention(kernel, backward, *shape)))

    def replay(self, duration: int) -> None:
        """A CUDA graph whose streams need so many nanoseconds, as one launch."""
        self._launch(_GRAPH, duration)

    def optimizer_of_host(self, name: str, parameters: int, dtype: str) -> None:
        """An update by a kernel of the CPU (DeepSpeedCPUAdam)."""
        seconds = self.costs.cpu_adam(parameters, dtype, self.host_threads)
        self.clock.work_on_host(WorkKind.OPTIMIZER, name, to_ns(seconds))

    def busy_since(self, spans: int) -> int:
        """Nanoseconds in which at least one stream worked, by what was recorded after `spans` entries."""
        self._wait_for_all()
        done = self._backend.spans(SPAN)[spans:]
        done = np.sort(done[np.isin(done["kind"], _DEVICE_WORK)], order="begin")
        if not len(done):
            return 0
        ends = np.maximum.accumulate(done["end"])
        gaps = np.maximum(done["begin"][1:] - ends[:-1], 0).sum()
        return int(ends[-1] - done["begin"][0] - gaps)

    # ---- drives
    def begin_nvme(self, kind: Copy, num_bytes: int) -> int:
        """Have the node's drives read or write in order, and return the event of the end.

        All ranks of the node do the same at once; reading does not wait for writing.
        """
        seconds = self.costs.copy(kind, num_bytes, True, self._local_ranks)
        self.clock.submit(_DRIVES[kind], WorkKind.COPY, kind, to_ns(seconds))
        return self.clock.record(_DRIVES[kind])

    def wait_for_nvme(self, done: int) -> None:
        """Have the host wait for it."""
        self.clock.synchronize(done)

    # ---- collectives
    def new_communicator(self) -> int:
        """The stream of a group of ranks."""
        self._communicators += 1
        return FIRST_COMMUNICATOR + self._communicators

    def collective(
        self,
        name: str,
        num_bytes: int,
        ranks: Sequence[int],
        communicator: int,
        meeting: Meeting,
        *,
        is_async: bool = True,
    ) -> int | None:
        """A collective of this rank with `ranks`; returns the event of its end if it is asynchronous.

        Asynchronous collectives run on the stream `communicator` after what the current stream was given,
        others on the current stream (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
        """
        self.clock.advance(to_ns(self.costs.collective_launch()))
        duration, *others = self._collective_cost(name, num_bytes, ranks, communicator)
        for of_network, its_duration in zip(self.meetings_by_network.values(), others, strict=True):
            of_network.append(its_duration)
        current = self._backend.current_stream
        kind = WorkKind.COLLECTIVE if len(ranks) > 1 else WorkKind.KERNEL
        number = self.meetings.come(meeting)
        if not is_async:
            self.clock.submit(current, kind, name, duration, meeting=number)
            return None
        self.clock.wait(communicator, self.clock.record(current))
        self.clock.submit(communicator, kind, name, duration, meeting=number)
        return self.clock.record(communicator)

    def _collective_cost(self, name: str, num_bytes: int, ranks: Sequence[int], communicator: int) -> list[int]:
        if communicator not in self._places:
            nodes = len({rank // self._gpus_per_node for rank in ranks})
            self._places[communicator] = -(-len(ranks) // nodes), nodes
        key = (_KINDS.get(name, "all_reduce"), num_bytes, *self._places[communicator])
        if key not in self._of_collectives:
            self._of_collectives[key] = [to_ns(costs.collective(*key)) for costs in self._networks]
        return self._of_collectives[key]

    # ---- steps
    def record_events(self) -> list[int]:
        """Record an event on each stream; returns them. Each happens when the work before it is done."""
        return [self.clock.record(stream) for stream in {0, *self.clock.streams}]

    def on_step_end(self, end: StepEnd) -> None:
        if end.clock_events is not None:
            self.step_end_events.append(end.clock_events)

    def on_exit(self) -> None:
        self._wait_for_all()

    def acts(self) -> Array:
        """What the host did, as bytes; empty if no other rank is rehearsed."""
        return np.frombuffer(self.clock.acts(), np.uint8)

    def step_ends(self) -> list[int]:
        """When all that belonged to each step was done, in nanoseconds, by this rank's own clock."""
        self._wait_for_all()
        return [max(self.clock.time_of(event) or 0 for event in events) for events in self.step_end_events]

    def _wait_for_all(self) -> None:
        """Have the host wait for the device and for the drives."""
        self.clock.synchronize_all()
        for drive in set(_DRIVES.values()).intersection(self.clock.streams):
            self.clock.synchronize_stream(drive)

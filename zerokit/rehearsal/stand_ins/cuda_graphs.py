"""CUDA graphs: captured while the operators run, with the pool that torch gives them; replayed as one launch.

A private pool (c10/cuda/CUDACachingAllocator.cpp) keeps its memory until its graphs are gone. A replay
allocates nothing and counts the captured work once more.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from zerokit.patches import Patch, put
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.recording import Collective
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.timing.rank_time import RankTime
from zerokit.rehearsal.watching.steps import Steps, Traffic

_STOOD_IN = "capture on the virtual device"
_GRAPH = [Patch(owner, "CUDAGraph", _STOOD_IN) for owner in ("torch.cuda", "torch.cuda.graphs")]
_HANDLE = Patch("torch.cuda.graphs", "_graph_pool_handle", "number private pools")
_CAPTURING = [
    Patch(owner, "_cuda_isCurrentStreamCapturing", "report whether a graph is captured", read_by="torch")
    for owner in ("torch._C", "torch.cuda.graphs")
]
_EMPTY_HOST_CACHE = Patch("torch._C", "_host_emptyCache", "keep pinned memory", read_by="torch")


class Graphs:
    """The parts of the rank that its graphs use."""

    traffic: Traffic
    steps: Steps

    def __init__(self) -> None:
        self.time: RankTime | None = None
        self.capturing: CUDAGraph | None = None
        self.handles = itertools.count(1)
        """Numbers of pools, whether a script or a graph makes them."""

    def capture(self, graph: CUDAGraph | None) -> None:
        self.capturing = graph
        if self.time is not None:
            self.time.clock.set_capturing(graph is not None)


def _graphs() -> Graphs:
    return rank_context().state(Graphs)


@stand_in("torch.cuda.CUDAGraph", "torch.cuda.graph", "make_graphed_callables")
def install(setup: RankSetup) -> None:
    """Stand in for CUDA graphs."""
    graphs = _graphs()
    graphs.traffic, graphs.steps, graphs.time = setup.rank.traffic, setup.rank.steps, setup.rank.time
    for graph in _GRAPH:
        put(graph, CUDAGraph)
    put(_HANDLE, lambda: (0, next(_graphs().handles)))
    for capturing in _CAPTURING:
        put(capturing, lambda: _graphs().capturing is not None)
    put(_EMPTY_HOST_CACHE, lambda: None)


class CUDAGraph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: tuple[int, int] | None = None
        self._is_captured = False
        self._before: tuple[int, float, int] = (0, 0.0, 0)
        self._collectives: list[Collective] = []
        self._flops = 0.0
        self._duration = 0
        """Nanoseconds in which a stream had something of it to do."""
        self._steps = 0
        self._release: Any = None

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Begin to capture; raises RuntimeError if this one is captured already or another one now."""
        if _graphs().capturing is not None or self._is_captured:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new "
                "instance or call reset()."
                if self._is_captured
                else "CUDA error: operation not permitted when stream is capturing"
            )
        library = backend()
        self._pool = tuple(pool) if pool is not None else (next(_graphs().handles), 0)
        library.begin_pool(_number(self._pool))
        self._release = weakref.finalize(self, library.release_pool, _number(self._pool))
        self._release.atexit = False
        graphs = _graphs()
        spans = 0 if graphs.time is None else graphs.time.clock.span_count()
        self._before = len(graphs.traffic.calls), library.flops, spans
        graphs.steps.begin_capture()
        graphs.capture(self)

    def capture_end(self) -> None:
        """End the capture; raises RuntimeError if there is none."""
        graphs = _graphs()
        if graphs.capturing is not self:
            raise RuntimeError("CUDA error: invalid argument: no capture is underway")
        library, (calls, flops, spans) = backend(), self._before
        graphs.capture(None)
        library.end_pool()
        self._is_captured = True
        self._steps = graphs.steps.end_capture()
        # On a GPU nothing of it has been done yet.
        self._collectives = graphs.traffic.take_back(calls)
        self._flops = library.flops - flops
        library.count_flops(-self._flops)
        if graphs.time is not None:
            self._duration = graphs.time.busy_since(spans)

    def replay(self) -> None:
        """Count the captured work once more; raises RuntimeError if there is none."""
        if not self._is_captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        graphs = _graphs()
        for call in self._collectives:
            graphs.traffic.add(call.name, call.bytes, call.group_size, is_of_rows=call.is_of_rows)
        backend().count_flops(self._flops)
        if graphs.time is not None:
            graphs.time.replay(self._duration)
        graphs.steps.replayed(self._steps)

    def reset(self) -> None:
        """Drop the graph; its pool's memory is free once no other graph uses it."""
        if self._release is not None:
            self._release()
        self._is_captured = False

    def pool(self) -> tuple[int, int]:
        """The name of its pool, which other graphs may share; raises RuntimeError before a capture."""
        if self._pool is None or not self._is_captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def instantiate(self) -> None:
        """Does nothing: a replay needs no executable graph."""

    enable_debug_mode = instantiate

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to show."""

    def register_generator_state(self, generator: Any) -> None:
        """Random numbers are made up."""


def _number(pool: tuple[int, int]) -> int:
    return pool[0] or pool[1]

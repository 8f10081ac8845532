"""ZeRO stages 1 and 2 on the GPU, replayed gradient by gradient.

Source: deepspeed/runtime/zero/stage_1_and_2.py, whose methods are named below.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.memory.allocator_blocks import block_bytes
from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.settings import Settings
from zerokit.memory.stage import (
    FLAT_COPY,
    GRADIENTS,
    NEW_GRADIENT,
    OPTIMIZER_STATES,
    OPTIMIZER_STEP,
    PARAMETERS,
    STEP_GRADIENTS,
)
from zerokit.memory.timeline import Timeline

REDUCE_BUCKET = "reduce bucket"
NORM = "fp64 copy for the gradient norm"
OFFLOAD_BUFFER = "buffer for offloaded gradients"
FLAT = "flat copy of the parameters"
FIRST_STATES = "states of the optimizer before it is divided"
COMPACT = "fp32 gradient partition"


@dataclass(frozen=True)
class Slices:
    """The trained parameters of a run in the flat buffer, cut into equal partitions."""

    partition: int
    """Elements of one, padding included."""
    first: dict[int, int]
    """By a parameter's identity: where it begins in the flat buffer."""

    def ranks(self, parameter: Parameter) -> range:
        """Whose partitions it reaches into."""
        begin = self.first[id(parameter)]
        return range(begin // self.partition, (begin + parameter.elements - 1) // self.partition + 1)

    def part(self, parameter: Parameter, rank: int) -> int:
        """Its elements in the partition of `rank`."""
        begin = self.first[id(parameter)]
        end = min(begin + parameter.elements, (rank + 1) * self.partition)
        return max(0, end - max(begin, rank * self.partition))


def slices_of(layout: Layout, world_size: int) -> Slices:
    """The flat buffer is padded to a multiple of 2N: `DeepSpeedZeroOptimizer.__init__`."""
    partition = 2 * ceil_div(layout.num_trainable, 2 * world_size)
    first, place = {}, 0
    for parameter in layout.trainable:
        first[id(parameter)] = place
        place += parameter.elements
    return Slices(partition, first)


def ranks_that_differ(layout: Layout, world_size: int) -> list[int]:
    """The first rank, the last that owns anything, and the one that keeps the most gradients."""
    slices = slices_of(layout, world_size)
    kept: dict[int, int] = {0: 0}
    for parameter in layout.trainable:
        for rank in slices.ranks(parameter):
            kept[rank] = kept.get(rank, 0) + parameter.elements
    return sorted({0, max(kept), max(kept, key=lambda rank: kept[rank])})


class FlatPartitions:
    """One rank of stages 1 and 2."""

    def __init__(
        self,
        timeline: Timeline,
        layout: Layout,
        settings: Settings,
        rank: int,
        *,
        engine_makes_optimizer: bool,
    ) -> None:
        self._engine_makes_optimizer = engine_makes_optimizer
        self._timeline, self._layout, self._settings, self._rank = timeline, layout, settings, rank
        self._slices = slices_of(layout, settings.world_size)
        self._e = settings.parameter_bytes
        self._own = [parameter for parameter in layout.trainable if rank in self._slices.ranks(parameter)]
        self._own_ids = {id(parameter) for parameter in self._own}
        self._kept_elements = sum(parameter.elements for parameter in self._own)
        self._waiting: dict[int, Parameter] = {}
        self._bucket: list[Parameter] = []
        self._in_bucket = 0
        self._holds_partition = False
        self._boundary = True

    @property
    def partition(self) -> int:
        """Elements of the optimizer's states on this rank."""
        return self._slices.partition

    @property
    def _offloads(self) -> bool:
        return self._settings.offload_optimizer != "none"

    @property
    def _reduces_at_once(self) -> bool:
        """Stage 1 keeps its gradients to the end of the backward pass unless it overlaps communication."""
        return self._settings.stage == 2 or (self._settings.overlap_comm and self._boundary)

    @property
    def _is_compact(self) -> bool:
        """Gradients go to one fp32 partition: `_use_compact_grad_partition_buffer`."""
        return self._settings.accumulation_bytes == 4 != self._e

    @property
    def _accumulator_bytes(self) -> int:
        """Stage 1 makes an fp32 copy of each gradient in `grad_accum`."""
        return 4 if self._is_compact and self._settings.stage == 1 else self._e

    def start(self) -> None:
        """`__init__`: flatten beside the model, clone the partition, one gradient of zeros."""
        timeline, settings, part = self._timeline, self._settings, self.partition
        trained = self._layout.num_trainable
        frozen = sum(
            block_bytes(self._e * one.elements) for one in self._layout.parameters if not one.trainable
        )
        timeline.hold(PARAMETERS, frozen + self._e * trained)
        flat = self._e * part * settings.world_size
        timeline.spike(FLAT, flat)
        timeline.hold(PARAMETERS, flat - self._e * trained)
        timeline.spike(OPTIMIZER_STATES, (self._e + settings.master_bytes) * part)
        if self._offloads:
            largest = max(parameter.elements for parameter in self._layout.trainable)
            timeline.hold(OFFLOAD_BUFFER, self._e * largest)
            return
        timeline.hold(OPTIMIZER_STATES, settings.master_bytes * part)
        timeline.spike(STEP_GRADIENTS, settings.master_bytes * part)
        if settings.optimizer.at_construction:
            self._hold_states()
            if self._engine_makes_optimizer:
                timeline.hold(FIRST_STATES, self._e * trained)

    def make_states(self) -> None:
        if not self._offloads and not self._settings.optimizer.at_construction:
            self._hold_states()

    def _hold_states(self) -> None:
        self._timeline.hold(OPTIMIZER_STATES, self._settings.state_bytes * self.partition)

    def begin_pass(self, *, boundary: bool) -> None:
        """Stage 1 reduces at the boundary only: `reduce_ready_partitions_and_remove_grads`."""
        self._boundary = boundary

    def fetch(self, step: ModuleCall, *, forward: bool) -> None: ...

    def release(self, step: ModuleCall, *, forward: bool) -> None: ...

    def save(self, step: ModuleCall) -> None: ...

    def unsave(self, step: ModuleCall) -> None: ...

    def ready(self, parameter: Parameter) -> None:
        """`process_gradients`, called by a hook."""
        number = self._e * parameter.elements
        self._timeline.free(NEW_GRADIENT, number)
        if not self._timeline.held.get(REDUCE_BUCKET):
            buffers = 2 if self._settings.overlap_comm else 1
            bucket = buffers * self._accumulator_bytes * self._settings.reduce_bucket
            self._timeline.hold(REDUCE_BUCKET, bucket)
        if id(parameter) not in self._waiting:
            self._waiting[id(parameter)] = parameter
            self._timeline.hold(GRADIENTS, self._accumulator_bytes * parameter.elements)
        if self._reduces_at_once:
            self._to_bucket(parameter)

    def _to_bucket(self, parameter: Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: what fits is copied and freed."""
        size = self._settings.reduce_bucket
        if self._in_bucket + parameter.elements > size:
            self._reduce()
        if parameter.elements <= size:
            self._drop(parameter)
        self._bucket.append(parameter)
        self._in_bucket += parameter.elements

    def _drop(self, parameter: Parameter) -> None:
        """Free a gradient's own storage."""
        if self._waiting.pop(id(parameter), None) is not None:
            self._timeline.free(GRADIENTS, self._accumulator_bytes * parameter.elements)

    def _reduce(self) -> None:
        """`reduce_ipg_grads`: flatten the slices of the bucket, reduce, keep this rank's gradients."""
        for count, elements in self._reduced_together():
            if count > 1:
                number = self._accumulator_bytes * elements
                if self._settings.communication_bytes > self._accumulator_bytes:
                    number += self._settings.communication_bytes * elements
                self._timeline.spike(FLAT_COPY, number)
        for parameter in self._bucket:
            if id(parameter) in self._own_ids:
                self._keep(parameter)
            if self._settings.stage == 2 or id(parameter) in self._own_ids:
                self._drop(parameter)
        self._bucket, self._in_bucket = [], 0

    def _reduced_together(self) -> list[tuple[int, int]]:
        """`average_tensor` and `allreduce_and_scatter`: number of slices and elements of each all-reduce.

        Neighbours of one rank are one slice, unless each goes to a place of its own in the fp32 partition.
        """
        chunks: list[tuple[int, int]] = []
        count = elements = 0
        previous = -1
        for parameter in self._bucket:
            for rank in self._slices.ranks(parameter):
                apart = rank != previous or (self._is_compact and rank == self._rank)
                if apart and elements > self._settings.reduce_bucket:
                    chunks.append((count, elements))
                    count = elements = 0
                count += apart
                elements += self._slices.part(parameter, rank)
                previous = rank
        return [*chunks, (count, elements)]

    def _keep(self, parameter: Parameter) -> None:
        """`copy_grads_in_partition`; what is offloaded is cast on the GPU, slice by slice."""
        timeline, part = self._timeline, self._slices.part(parameter, self._rank)
        if self._is_compact:
            if not self._holds_partition:
                self._holds_partition = True
                timeline.hold(COMPACT, 4 * self.partition)
        elif self._offloads:
            pass
        elif not self._holds_partition:
            self._holds_partition = True
            timeline.hold(GRADIENTS, self._e * self._kept_elements)
        if self._offloads:
            timeline.spike(NORM, 8 * part)

    def end_backward(self, *, boundary: bool) -> None:
        """`independent_gradient_partition_epilogue`, for stage 1 at the boundary only."""
        timeline = self._timeline
        if not self._reduces_at_once:
            if not boundary:
                return
            for parameter in list(self._layout.trainable):
                if id(parameter) in self._waiting:
                    self._to_bucket(parameter)
        if self._bucket:
            self._reduce()
        timeline.free_all(REDUCE_BUCKET)
        if self._is_compact or self._offloads:
            self._free_gradients(0)
            return
        # Of the second micro-batch on, these gradients are added to those that are kept, and freed.
        self._holds_partition = False
        kept = self._e * self._kept_elements
        self._free_gradients(kept)

    def _free_gradients(self, kept: int) -> None:
        self._waiting.clear()
        surplus = self._timeline.held.get(GRADIENTS, 0) - kept
        if surplus > 0:
            self._timeline.free(GRADIENTS, surplus)

    def step(self) -> None:
        """`step`: the norm gradient by gradient, then flatten, cast, and run the optimizer."""
        timeline, settings, part = self._timeline, self._settings, self.partition
        self._holds_partition = False
        if self._offloads:
            timeline.free_all(GRADIENTS)
            timeline.free_all(COMPACT)
            return
        largest = max((self._slices.part(parameter, self._rank) for parameter in self._own), default=0)
        timeline.spike(NORM, 8 * largest)
        cast = settings.master_bytes if self._is_compact or self._e != settings.master_bytes else 0
        if self._is_compact:
            timeline.hold(STEP_GRADIENTS, 4 * part)
        else:
            flattened = self._e * part if len(self._own) > 1 else 0
            timeline.spike(STEP_GRADIENTS, flattened + cast * part)
            timeline.hold(STEP_GRADIENTS, settings.master_bytes * part)
        timeline.free_all(GRADIENTS)
        timeline.free_all(COMPACT)
        timeline.spike(OPTIMIZER_STEP, round(settings.optimizer.step * settings.moment_bytes * part))
        timeline.free_all(STEP_GRADIENTS)

"""ZeRO stages 1 and 2 on the GPU, replayed gradient by gradient.

Source: deepspeed/runtime/zero/stage_1_and_2.py; docstrings name its methods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.overheads import overhead_terms
from zerokit.memory.settings import Settings
from zerokit.memory.stage import NEW_GRADIENT, Stage, hold_parameters
from zerokit.memory.term import kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)
FLAT = KINDS.FLAT


@dataclass(frozen=True)
class Slices:
    """The trained parameters in the flat buffer, cut into equal partitions."""

    partition: int
    """Elements of one partition, including padding."""
    first: dict[Parameter, int]
    """Offset in the flat buffer."""

    _ranks: dict[Parameter, range]

    def ranks(self, parameter: Parameter) -> range:
        """The ranks whose partitions contain part of it."""
        return self._ranks[parameter]

    def part(self, parameter: Parameter, rank: int) -> int:
        """Its elements in the partition of `rank`."""
        begin = self.first[parameter]
        end = min(begin + parameter.elements, (rank + 1) * self.partition)
        return max(0, end - max(begin, rank * self.partition))


@lru_cache(maxsize=8)
def slices_of(layout: Layout, world_size: int) -> Slices:
    """The flat buffer is padded to a multiple of 2N: `DeepSpeedZeroOptimizer.__init__`."""
    partition = 2 * ceil_div(layout.num_trainable, 2 * world_size)
    first, ranks, place = {}, {}, 0
    for parameter in layout.trainable:
        end = place + parameter.elements
        first[parameter] = place
        ranks[parameter] = range(place // partition, (end - 1) // partition + 1)
        place = end
    return Slices(partition, first, ranks)


def flattens_on_gpu(layout: Layout, settings: Settings) -> bool | None:
    """Whether the GPU has room for a second copy of the parameters while they are flattened; None: unsure.

    DeepSpeed 0.18.7 and later look at the free memory, and otherwise flatten on the host
    (`flatten_on_accelerator`); earlier releases always do. A run never needs the room. A card that is not
    known has it.
    """
    if settings.gpu_memory is None:
        return True
    flat = slices_of(layout, settings.zero_ranks).partition * settings.zero_ranks
    both = settings.parameter_bytes * (layout.num_parameters + flat)
    overheads = overhead_terms(both, settings.zero_ranks)
    if both + sum(term.high for term in overheads) <= settings.gpu_memory:
        return True
    return False if both + sum(term.low for term in overheads) > settings.gpu_memory else None


def ranks_that_differ(layout: Layout, world_size: int) -> list[int]:
    """The first rank, the last rank that owns anything, and the rank that keeps the most gradients."""
    slices = slices_of(layout, world_size)
    kept: dict[int, int] = {0: 0}
    for parameter in layout.trainable:
        for rank in slices.ranks(parameter):
            kept[rank] = kept.get(rank, 0) + parameter.elements
    return sorted({0, max(kept), max(kept, key=lambda rank: kept[rank])})


class Stage1And2(Stage):
    """One rank of stages 1 and 2."""

    def __init__(
        self, timeline: Timeline, layout: Layout, settings: Settings, rank: int, *, engine_makes_optimizer: bool
    ) -> None:
        self._engine_makes_optimizer = engine_makes_optimizer
        self._timeline, self._layout, self._settings, self._rank = timeline, layout, settings, rank
        self._slices = slices_of(layout, settings.zero_ranks)
        self._e = settings.parameter_bytes
        self._states = OptimizerStates(settings, "Φₜ/N")
        self._temporary = settings.optimizer.kind_of("TEMPORARY", "Φₜ/N")
        self._own = dict.fromkeys(one for one in layout.trainable if rank in self._slices.ranks(one))
        self._kept_elements = sum(parameter.elements for parameter in self._own)
        self._waiting = set[Parameter]()
        self._bucket: list[Parameter] = []
        self._in_bucket = 0
        self._holds_partition = self._holds_bucket = False
        self._boundary = True
        # Stage 1 makes an fp32 copy of each gradient in `grad_accum`.
        letter = "g" if self._is_compact and settings.stage == 1 else "e"
        self._gradient_bytes = settings.accumulation_bytes if letter == "g" else self._e
        self._gradients = replace(KINDS.GRADIENTS, unit=letter)
        self._buckets = 2 if settings.overlap_comm else 1
        self._reduce_bucket = replace(KINDS.REDUCE_BUCKET, unit=letter)
        if settings.overlap_comm:
            self._reduce_bucket = replace(self._reduce_bucket, count="2·reduce_bucket_size")
        self._flat_copy = replace(KINDS.FLAT_COPY, unit=letter)

    @property
    def partition(self) -> int:
        """Elements of the optimizer states on this rank."""
        return self._slices.partition

    @property
    def _offloads(self) -> bool:
        return self._settings.offload_optimizer != "none"

    @property
    def _reduces_at_once(self) -> bool:
        """Stage 1 keeps its gradients until the end of the backward pass unless it overlaps communication."""
        return self._settings.stage == 2 or (self._settings.overlap_comm and self._boundary)

    @property
    def _is_compact(self) -> bool:
        """Gradients go into one fp32 partition: `_use_compact_grad_partition_buffer`."""
        return self._settings.accumulation_bytes == 4 != self._e

    def start(self) -> None:
        """`__init__`: flatten parameters, clone the partition, make zero gradients."""
        timeline, settings, part = self._timeline, self._settings, self.partition
        trained, master = self._layout.num_trainable, settings.master_bytes
        hold_parameters(
            timeline, KINDS.PARAMETERS, self._e, [one for one in self._layout.parameters if not one.trainable]
        )
        timeline.hold(KINDS.PARAMETERS, self._e, trained)
        padded = part * settings.zero_ranks
        if flattens_on_gpu(self._layout, settings):
            timeline.spike(FLAT, self._e, padded)
        timeline.hold(KINDS.PARAMETERS, self._e, padded - trained)
        if not self._offloads:  # a copy to the host is converted there (aten/src/ATen/native/cuda/Copy.cu)
            timeline.hold(KINDS.MASTER, master, part)
        timeline.spike(KINDS.CLONES, self._e, part)
        if self._offloads:
            largest = max(parameter.elements for parameter in self._layout.trainable)
            timeline.hold(KINDS.OFFLOAD_BUFFER, self._e, largest)
            return
        timeline.spike(KINDS.STEP_GRADIENTS, master, part)
        if settings.optimizer.at_construction:
            self._hold_states()
            if self._engine_makes_optimizer:
                timeline.hold(KINDS.FIRST_STATES, self._e, trained)

    def make_states(self) -> None:
        if not self._offloads and not self._settings.optimizer.at_construction:
            self._hold_states()

    def _hold_states(self) -> None:
        self._states.hold(self._timeline, [self.partition])

    def begin_pass(self, *, boundary: bool) -> None:
        """Stage 1 reduces only at the boundary: `reduce_ready_partitions_and_remove_grads`."""
        self._boundary = boundary

    def ready(self, parameter: Parameter) -> None:
        """`process_gradients`, called by a hook."""
        self._timeline.free(NEW_GRADIENT, self._e, parameter.elements)
        if not self._holds_bucket:
            self._holds_bucket = True
            elements = self._buckets * self._settings.reduce_bucket
            self._timeline.hold(self._reduce_bucket, self._gradient_bytes, elements)
        if parameter not in self._waiting:
            self._waiting.add(parameter)
            self._timeline.hold(self._gradients, self._gradient_bytes, parameter.elements)
        if self._reduces_at_once:
            self._to_bucket(parameter)

    def _to_bucket(self, parameter: Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: copy and free gradients that fit the bucket.

        With offload, larger gradients are cloned.
        """
        size = self._settings.reduce_bucket
        if self._in_bucket + parameter.elements > size:
            self._reduce()
        if parameter.elements <= size:
            self._drop(parameter)
        elif self._offloads:
            self._timeline.spike(KINDS.OVERSIZED, self._gradient_bytes, parameter.elements)
        self._bucket.append(parameter)
        self._in_bucket += parameter.elements

    def _drop(self, parameter: Parameter) -> None:
        """Free a gradient's own storage."""
        if parameter in self._waiting:
            self._waiting.remove(parameter)
            self._timeline.free(self._gradients, self._gradient_bytes, parameter.elements)

    def _reduce(self) -> None:
        """`reduce_ipg_grads`: flatten and reduce the slices of the bucket, and keep this rank's gradients."""
        for count, elements in self._reduced_together():
            if count > 1:
                self._timeline.hold(self._flat_copy, self._gradient_bytes, elements)
                if self._settings.communication_bytes > self._gradient_bytes:
                    self._timeline.spike(KINDS.COMMUNICATION_COPY, self._settings.communication_bytes, elements)
                self._timeline.free(self._flat_copy, self._gradient_bytes, elements)
        for parameter in self._bucket:
            if parameter in self._own:
                self._keep(parameter)
            if self._settings.stage == 2 or parameter in self._own:
                self._drop(parameter)
        self._bucket, self._in_bucket = [], 0

    def _reduced_together(self) -> list[tuple[int, int]]:
        """`average_tensor` and `allreduce_and_scatter`: number of slices and elements of each all-reduce.

        Neighbours of one rank form one slice, unless they go to separate places in the fp32 partition.
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
        """`copy_grads_in_partition`; offloaded gradients are cast on the GPU slice by slice."""
        timeline, part = self._timeline, self._slices.part(parameter, self._rank)
        if self._is_compact:
            if not self._holds_partition:
                self._holds_partition = True
                timeline.hold(KINDS.COMPACT, self._settings.accumulation_bytes, self.partition)
        elif not (self._offloads or self._holds_partition):
            self._holds_partition = True
            timeline.hold(self._gradients, self._e, self._kept_elements)
        if self._offloads:
            timeline.spike(KINDS.NORM, 8, part)

    def end_backward(self, *, boundary: bool) -> None:
        """`independent_gradient_partition_epilogue`; for stage 1 only at the boundary."""
        timeline = self._timeline
        if not self._reduces_at_once:
            if not boundary:
                return
            for parameter in list(self._layout.trainable):
                if parameter in self._waiting:
                    self._to_bucket(parameter)
        if self._bucket:
            self._reduce()
        timeline.free_all(self._reduce_bucket)
        self._holds_bucket = False
        self._waiting.clear()
        if self._is_compact or self._offloads:
            timeline.free_all(self._gradients)
            return
        # From the second micro-batch on, these gradients are added to the kept gradients, and freed.
        self._holds_partition = False
        surplus = timeline.bytes_of(self._gradients) // self._e - self._kept_elements
        timeline.free(self._gradients, self._e, max(0, surplus))

    def step(self) -> None:
        """`step`: the norm of each gradient; then flatten, cast, and run the optimizer."""
        timeline, settings, part = self._timeline, self._settings, self.partition
        self._holds_partition = False
        if self._offloads:
            timeline.free_all(self._gradients)
            timeline.free_all(KINDS.COMPACT)
            return
        largest = max((self._slices.part(parameter, self._rank) for parameter in self._own), default=0)
        timeline.spike(KINDS.NORM, 8, largest)
        if self._is_compact:
            kind = replace(KINDS.STEP_GRADIENTS, unit="g")
            timeline.hold(kind, settings.accumulation_bytes, part)
        else:
            kind = KINDS.STEP_GRADIENTS
            timeline.hold(kind, settings.master_bytes, part)
            if len(self._own) > 1 and self._e != settings.master_bytes:
                timeline.spike(KINDS.FLAT_GRADIENTS, self._e, part)
        timeline.free_all(self._gradients)
        timeline.free_all(KINDS.COMPACT)
        timeline.spike(self._temporary, settings.temporary_bytes, part)
        timeline.free_all(kind)

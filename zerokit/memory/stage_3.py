"""ZeRO stage 3 on the GPU: shards, one flat gradient partition, one reduce bucket, sub-groups.

Source: deepspeed/runtime/zero/stage3.py, whose methods are named below.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.memory.coordinator import Call, Coordinator
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
from zerokit.memory.stage_1_2 import NORM, REDUCE_BUCKET
from zerokit.memory.timeline import Timeline

PERSISTENT = "persistent parameters"
OVERFLOW = "test for overflow"
OFFLOADED_GRADIENTS = "gradient shards on their way to the host"
_NORM_PIECE = 250_000_000
"""Elements: `_constant_buffered_norm2`."""


def shard(parameter: Parameter, world_size: int) -> int:
    """Elements of one rank's part; each parameter is padded by itself: Init._partition_param."""
    return ceil_div(parameter.elements, world_size)


def sub_groups(layout: Layout, settings: Settings) -> list[list[int]]:
    """Shards of trained parameters that the optimizer updates together: `_create_fp16_sub_groups`."""
    shards = [shard(parameter, settings.world_size) for parameter in layout.trainable]
    if settings.sub_group >= sum(shards):
        return [shards]
    groups: list[list[int]] = [[]]
    for number, elements in enumerate(shards):
        groups[-1].append(elements)
        if sum(groups[-1]) >= settings.sub_group and number < len(shards) - 1:
            groups.append([])
    return groups


class Partitioned:
    """One rank of stage 3."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings, calls: Sequence[Call]) -> None:
        self._timeline, self._layout, self._settings = timeline, layout, settings
        self._e = settings.parameter_bytes
        self._coordinator = Coordinator(timeline, settings, calls)
        self._groups = sub_groups(layout, settings)
        self._bucket: list[Parameter] = []
        self._in_bucket = 0
        self._own_storage: list[Parameter] = []
        self._calls: dict[tuple[int, str], list[Call]] = {}

    @property
    def partition(self) -> int:
        """Elements of the optimizer's states on this rank."""
        return sum(map(sum, self._groups))

    @property
    def _offloads(self) -> bool:
        return self._settings.offload_optimizer != "none"

    def start(self) -> None:
        """`_create_fp32_partitions` clones what it has cast; `_setup_for_real_optimizer`."""
        timeline, settings, world = self._timeline, self._settings, self._settings.world_size
        small = [one for one in self._layout.parameters if self._coordinator.persists(one)]
        persistent = sum(one.elements for one in small)
        frozen = [one for one in small if not one.trainable]
        # zero.Init makes a parameter whole, and cuts it.
        timeline.spike(PARAMETERS, 2 * self._e * max(one.elements for one in self._layout.parameters))
        on_gpu = self._layout.parameters if settings.offload_param == "none" else frozen
        timeline.hold(PARAMETERS, self._e * sum(shard(one, world) for one in on_gpu))
        timeline.hold(PERSISTENT, self._e * persistent if world > 1 else 0)
        if not self._offloads:
            largest = max(map(sum, self._groups))
            states = settings.master_bytes * self.partition
            timeline.hold(OPTIMIZER_STATES, states)
            timeline.spike(OPTIMIZER_STATES, settings.master_bytes * largest)
            timeline.hold(GRADIENTS, settings.accumulation_bytes * self.partition)
        timeline.hold(REDUCE_BUCKET, settings.communication_bytes * settings.reduce_bucket)

    def make_states(self) -> None:
        if not self._offloads:
            self._timeline.hold(OPTIMIZER_STATES, self._settings.state_bytes * self.partition)

    def begin_pass(self, *, boundary: bool) -> None:
        self._coordinator.reset()

    def fetch(self, step: ModuleCall, *, forward: bool) -> None:
        for call in self._calls_of(step):
            self._coordinator.fetch(call)

    def release(self, step: ModuleCall, *, forward: bool) -> None:
        for call in self._calls_of(step):
            self._coordinator.release(call)

    def save(self, step: ModuleCall) -> None:
        """torch.nn.Linear alone is replaced by one that keeps no weight: runtime/zero/linear.py."""
        for call in self._calls_of(step):
            self._coordinator.save(call)

    def unsave(self, step: ModuleCall) -> None:
        for call in self._calls_of(step):
            self._coordinator.unsave(call)

    def _calls_of(self, step: ModuleCall) -> list[Call]:
        key = (id(step.parameters), step.module)
        if key not in self._calls:
            self._calls[key] = calls_of(step)
        return self._calls[key]

    def ready(self, parameter: Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: what fits the bucket is copied and freed."""
        bucket = self._settings.reduce_bucket
        if self._bucket and self._in_bucket + parameter.elements > bucket:
            self._reduce()
        number = self._e * parameter.elements
        if self._in_bucket + parameter.elements > bucket:
            self._own_storage.append(parameter)
        else:
            self._timeline.free(NEW_GRADIENT, number)
        self._bucket.append(parameter)
        self._in_bucket += parameter.elements

    def _reduce(self) -> None:
        """`__avg_scatter_grads` over reduce_scatter_coalesced, then `partition_grads`."""
        timeline, settings, world = self._timeline, self._settings, self._settings.world_size
        padded = sum(shard(one, world) * world for one in self._bucket)
        alone = len(self._bucket) == 1 and self._bucket[0].elements % world == 0
        copied = 0 if alone else settings.communication_bytes * padded
        timeline.hold(FLAT_COPY, copied)
        if self._offloads:
            shards = [shard(one, world) for one in self._bucket]
            held = settings.accumulation_bytes * sum(shards)
            if settings.offload_optimizer == "nvme":
                held += settings.master_bytes * sum(shards)
            largest = max(shards)
            extra = max(8 * min(largest, _NORM_PIECE), settings.master_bytes * largest)
            timeline.spike(OFFLOADED_GRADIENTS, held + extra)
        timeline.free(FLAT_COPY, copied)
        for one in self._own_storage:
            timeline.free(NEW_GRADIENT, self._e * one.elements)
        self._own_storage, self._bucket, self._in_bucket = [], [], 0

    def end_backward(self, *, boundary: bool) -> None:
        """`independent_gradient_partition_epilogue`."""
        if self._bucket:
            self._reduce()

    def step(self) -> None:
        """`step`: test, norm, then one sub-group after the other; nothing on the GPU with offload."""
        timeline, settings, world = self._timeline, self._settings, self._settings.world_size
        self._coordinator.release_all()
        if self._offloads:
            return
        if settings.precision == "fp16":
            timeline.spike(OVERFLOW, (settings.accumulation_bytes + 1) * self.partition)
        largest = max((shard(one, world) for one in self._layout.trainable), default=0)
        timeline.spike(NORM, 8 * largest)
        cast = settings.master_bytes if settings.accumulation_bytes != settings.master_bytes else 0
        for group in self._groups:
            elements = sum(group)
            flattened = settings.accumulation_bytes * elements if len(group) > 1 else 0
            timeline.spike(STEP_GRADIENTS, flattened + cast * elements)
            timeline.hold(STEP_GRADIENTS, settings.master_bytes * elements)
            temporary = settings.optimizer.step * settings.moment_bytes * elements
            timeline.spike(OPTIMIZER_STEP, round(temporary))
            timeline.free_all(STEP_GRADIENTS)


def calls_of(step: ModuleCall) -> list[Call]:
    """A step's modules: each adapter is one of its own, and what has no parameters still counts as a call."""
    base = tuple(one for one in step.parameters if not one.adapter)
    adapters = [one for one in step.parameters if one.adapter]
    return [Call(step.module, base), *(Call(one.module, (one,)) for one in adapters)]

"""ZeRO stage 3 on the GPU: shards, a flat gradient partition, a reduce bucket, sub-groups.

Source: deepspeed/runtime/zero/stage3.py; docstrings name its methods.
"""

from __future__ import annotations

from functools import lru_cache

from zerokit.memory.bnb_4bit import WHOLE, StoredLayout
from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.param_coordinator import CallOrder, Coordinator, Submodule
from zerokit.memory.same_object import SameObject
from zerokit.memory.settings import Settings
from zerokit.memory.stage import NEW_GRADIENT, Stage
from zerokit.memory.term import kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)
PERSISTENT = KINDS.PERSISTENT

_NORM_PIECE = 250_000_000
"""Elements: `_constant_buffered_norm2`."""


def shard(parameter: Parameter, world_size: int) -> int:
    """Elements of one rank's shard; each parameter is padded by itself (`Init._partition_param`)."""
    return ceil_div(parameter.elements, world_size * parameter.replicas)


def sub_groups(layout: Layout, settings: Settings) -> list[list[int]]:
    """Shards that the optimizer updates together: `_create_fp16_sub_groups`.

    Those of different ranks are apart (deepspeed/runtime/engine.py `_configure_zero_optimizer`).
    """
    groups: list[list[int]] = []
    for replicas in sorted({one.replicas for one in layout.trainable} or {1}):
        shards = [shard(one, settings.zero_ranks) for one in layout.trainable if one.replicas == replicas]
        groups += _sub_groups(shards, settings)
    return groups


def _sub_groups(shards: list[int], settings: Settings) -> list[list[int]]:
    if settings.sub_group >= sum(shards):
        return [shards]
    groups: list[list[int]] = [[]]
    for number, elements in enumerate(shards):
        groups[-1].append(elements)
        if sum(groups[-1]) >= settings.sub_group and number < len(shards) - 1:
            groups.append([])
    return groups


def num_gpu_groups(groups: list[list[int]], settings: Settings) -> int:
    """How many sub-groups, the first ones, offload leaves on the GPU: `_create_fp32_partitions`."""
    return int(settings.gpu_share * len(groups))


@lru_cache(maxsize=128)
def _submodules(
    stored: StoredLayout, calls: SameObject[tuple[ModuleCall, ...]]
) -> tuple[dict[ModuleCall, list[Submodule]], CallOrder]:
    """The modules of each call and of the calls within it, and all that are fetched in order."""
    outer = (inner for call in calls.value for inner in (call, *call.inner))
    by_call = {part: _modules_within(part, stored) for call in outer for part in (call, *call.parts)}
    return by_call, CallOrder([one for call in calls.value for one in by_call[call]])


def _modules_within(call: ModuleCall, layout: StoredLayout) -> list[Submodule]:
    """The modules of a call: each adapter is one, and so is a module without parameters."""
    stored = layout.of
    if call.inner:
        return [Submodule(call.module, stored(call.parameters), is_leaf=True)]
    adapters = [one for one in call.parameters if one.adapter]
    return [
        Submodule(call.module, stored(one for one in call.parameters if not one.adapter), within=stored(call.within)),
        *(Submodule(one.module, (one,)) for one in adapters),
    ]


class Stage3(Stage):
    """One rank of stage 3.

    Args:
        stored: the parameters.
        calls: of a micro-batch in the order of `fetch`.
        is_first: the first pass, when DeepSpeed does not know their order.
    """

    gathers = True

    def __init__(
        self,
        timeline: Timeline,
        stored: StoredLayout,
        settings: Settings,
        calls: tuple[ModuleCall, ...],
        *,
        is_first: bool = False,
    ) -> None:
        self._timeline, self._stored, self._settings = timeline, stored, settings
        self._layout = stored.layout
        self._e = settings.parameter_bytes
        self._submodules, order = _submodules(stored, SameObject(calls))
        self._coordinator = Coordinator(timeline, settings, () if is_first else order)
        self._is_first = is_first
        self._groups = sub_groups(stored.layout, settings)
        self._bucket: list[Parameter] = []
        self._in_bucket = 0
        self._own_storage: list[Parameter] = []
        self._states = OptimizerStates(settings, "Σ⌈size/N⌉")
        self._temporary = settings.optimizer.kind_of("TEMPORARY", "sub-group")

    @property
    def partition(self) -> int:
        """Elements of the optimizer states on this rank."""
        return sum(map(sum, self._groups))

    @property
    def _offloads(self) -> bool:
        return self._settings.offload_optimizer != "none"

    @property
    def _updated_here(self) -> list[list[int]]:
        """Sub-groups that the GPU updates."""
        return self._groups[: num_gpu_groups(self._groups, self._settings)] if self._offloads else self._groups

    def start(self) -> None:
        """`_create_fp32_partitions` clones the cast parameters; then `_setup_for_real_optimizer`."""
        timeline, settings, world = self._timeline, self._settings, self._settings.zero_ranks
        small = [one for one in self._layout.parameters if self._coordinator.persists(one)]
        persistent = sum(one.elements for one in small if world * one.replicas > 1)
        frozen = [one for one in small if not one.trainable]
        # bitsandbytes packs weights on the GPU before zero.Init partitions them.
        timeline.spike(WHOLE, self._e, sum(one.elements for one in self._layout.packed))
        # AutoTP gathers what it divides.
        gathered = any(one.replicas > 1 for one in self._layout.parameters)
        parts = sum(one.elements for one in self._layout.parameters if gathered and one.replicas == 1)
        timeline.spike(KINDS.PARTS, self._e, parts)
        # zero.Init builds a parameter whole, then partitions it.
        timeline.spike(KINDS.UNDIVIDED, self._e, 2 * max(one.elements for one in self._layout.parameters))
        stored = self._layout.parameters if settings.offload_param == "none" else frozen
        timeline.hold(KINDS.PARAMETERS, self._e, sum(shard(one, world) for one in stored))
        timeline.hold(PERSISTENT, self._e, persistent)
        self._coordinator.make_secondary(self._layout.parameters)
        on_gpu = self._updated_here
        timeline.hold(KINDS.MASTER, settings.master_bytes, sum(map(sum, on_gpu)))
        timeline.spike(KINDS.CLONES, settings.master_bytes, max(map(sum, on_gpu), default=0))
        if self._offloads:
            timeline.hold(KINDS.GPU_GRADIENTS, settings.master_bytes, sum(map(sum, on_gpu)))
        else:
            timeline.hold(KINDS.GRADIENTS, settings.accumulation_bytes, self.partition)
        timeline.hold(KINDS.REDUCE_BUCKET, settings.communication_bytes, settings.reduce_bucket)
        if not self._is_first:
            self._coordinator.drop_secondary(self._layout.trainable)

    def make_states(self) -> None:
        self._states.hold(self._timeline, map(sum, self._updated_here))

    def begin_pass(self, *, boundary: bool) -> None:
        self._coordinator.reset()

    @property
    def state(self) -> object:
        return self._coordinator.state, self._timeline.held

    def fetch(self, call: ModuleCall) -> None:
        for submodule in self._submodules[call]:
            self._coordinator.fetch(submodule)

    def release(self, call: ModuleCall) -> None:
        for submodule in self._submodules[call]:
            self._coordinator.release(submodule)

    def save(self, call: ModuleCall, only_trained: bool = False) -> None:
        """Only torch.nn.Linear is replaced by a function that keeps no weight: runtime/zero/linear.py."""
        for submodule in self._submodules[call]:
            self._coordinator.save(submodule, only_trained=only_trained)

    def unsave(self, call: ModuleCall) -> None:
        for submodule in self._submodules[call]:
            self._coordinator.unsave(submodule)

    def ready(self, parameter: Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: copy and free gradients that fit the bucket."""
        bucket = self._settings.reduce_bucket
        is_apart = bool(self._bucket) and self._bucket[0].replicas != parameter.replicas
        if self._bucket and (is_apart or self._in_bucket + parameter.elements > bucket):
            self._reduce()
        if self._in_bucket + parameter.elements > bucket:
            self._own_storage.append(parameter)
        else:
            self._timeline.free(NEW_GRADIENT, self._e, parameter.elements)
        self._bucket.append(parameter)
        self._in_bucket += parameter.elements

    def _reduce(self) -> None:
        """`__avg_scatter_grads` with reduce_scatter_coalesced, then `partition_grads`."""
        timeline, settings, world = self._timeline, self._settings, self._settings.zero_ranks
        ranks = world * self._bucket[0].replicas
        padded = sum(shard(one, world) * ranks for one in self._bucket)
        alone = len(self._bucket) == 1 and self._bucket[0].elements % ranks == 0
        copied = 0 if alone else padded
        c, g, e = settings.communication_bytes, settings.accumulation_bytes, self._e
        # Gradients outside the bucket are cast first, and shards afterwards.
        cast = sum(one.elements for one in self._own_storage) if c != e else 0
        timeline.hold(KINDS.FLAT_COPY, c, copied)
        timeline.hold(KINDS.CAST_GRADIENTS, c, cast)
        timeline.spike(KINDS.REDUCED_SHARDS, g, padded // ranks if c != g else 0)
        timeline.free(KINDS.CAST_GRADIENTS, c, cast)
        if self._offloads:
            self._offload()
        timeline.free(KINDS.FLAT_COPY, c, copied)
        for one in self._own_storage:
            timeline.free(NEW_GRADIENT, self._e, one.elements)
        self._own_storage, self._bucket, self._in_bucket = [], [], 0

    def _offload(self) -> None:
        """`partition_grads`: shard by shard; those for NVMe are written together."""
        timeline, settings = self._timeline, self._settings
        g, m = settings.accumulation_bytes, settings.master_bytes
        for elements in (shard(one, settings.zero_ranks) for one in self._bucket):
            timeline.hold(KINDS.OFFLOADED_GRADIENTS, g, elements)
            timeline.spike(KINDS.NORM, 8, min(elements, _NORM_PIECE))
            if settings.offload_optimizer == "nvme":
                timeline.hold(KINDS.CAST_SHARDS, m, elements)
            else:
                timeline.spike(KINDS.CAST_SHARDS, m, elements)
            timeline.free(KINDS.OFFLOADED_GRADIENTS, g, elements)
        timeline.free_all(KINDS.CAST_SHARDS)

    def end_backward(self, *, boundary: bool) -> None:
        """`independent_gradient_partition_epilogue`, then `backward_epilogue`."""
        if self._bucket:
            self._reduce()
        self._coordinator.release_leftovers()

    def step(self) -> None:
        """`step`: overflow test, norm, then each sub-group; with offload nothing happens on the GPU."""
        self._coordinator.release_all()
        self._coordinator.make_secondary(self._layout.parameters)
        self._update()
        self._coordinator.drop_secondary(self._layout.trainable)

    def _update(self) -> None:
        timeline, settings, world = self._timeline, self._settings, self._settings.zero_ranks
        if self._offloads:
            # torch.optim.AdamW updates them: `backup_optimizer`.
            for group in self._updated_here:
                timeline.spike(KINDS.GPU_TEMPORARY, settings.moment_bytes, sum(group))
            return
        if settings.precision == "fp16":
            timeline.spike(KINDS.OVERFLOW, settings.accumulation_bytes + 1, self.partition)
        largest = max((shard(one, world) for one in self._layout.trainable), default=0)
        timeline.spike(KINDS.NORM, 8, largest)
        is_cast = settings.accumulation_bytes != settings.master_bytes
        for group in self._groups:
            elements = sum(group)
            timeline.hold(KINDS.STEP_GRADIENTS, settings.master_bytes, elements)
            if len(group) > 1 and is_cast:
                timeline.spike(KINDS.FLAT_GRADIENTS, settings.accumulation_bytes, elements)
            timeline.spike(self._temporary, settings.temporary_bytes, elements)
            timeline.free_all(KINDS.STEP_GRADIENTS)

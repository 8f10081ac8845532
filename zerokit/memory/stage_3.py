"""ZeRO stage 3 on the GPU: shards, a flat gradient partition, a reduce bucket, sub-groups.

Source: deepspeed/runtime/zero/stage3.py; docstrings name its methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zerokit.memory import stage, stage_1_2
from zerokit.memory.bnb_4bit import WHOLE, StoredLayout
from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.param_coordinator import PARTITION, Coordinator, Submodule
from zerokit.memory.settings import Settings
from zerokit.memory.stage import NEW_GRADIENT, Stage
from zerokit.memory.term import TermKind
from zerokit.memory.timeline import Timeline

STAGE_3 = "deepspeed/runtime/zero/stage3.py"

PARAMETERS = replace(stage.PARAMETERS, count="Σ⌈size/N⌉", source=f"{PARTITION} Init._partition_param")
UNDIVIDED = replace(PARAMETERS, name="a parameter before it is divided", count="2·largest parameter")
PERSISTENT = TermKind(
    "persistent parameters",
    "parameters",
    unit="e",
    count="Σ sizes up to the persistence threshold",
    source="deepspeed/runtime/zero/parameter_offload.py mark_persistent_parameters",
    certainty="exact",
)
MASTER = replace(stage.MASTER, count="Σ⌈size/N⌉", source=f"{STAGE_3} _create_fp32_partitions")
CLONES = replace(
    stage.CLONES, unit="m", count="largest sub-group", source=f"{STAGE_3} _create_fp32_partitions"
)
GRADIENTS = replace(
    stage.GRADIENTS, unit="g", count="Σ⌈size/N⌉", source=f"{STAGE_3} _setup_for_real_optimizer"
)
REDUCE_BUCKET = replace(stage_1_2.REDUCE_BUCKET, unit="c", source=f"{STAGE_3} _setup_for_real_optimizer")
FLAT_COPY = replace(
    stage.FLAT_COPY,
    unit="c",
    count="Σ sizes in the bucket",
    source="deepspeed/runtime/comm/coalesced_collectives.py reduce_scatter_coalesced",
    certainty="modelled",
)
OFFLOADED_GRADIENTS = TermKind(
    "a gradient's shard before it is offloaded",
    "gradients",
    unit="g",
    count="⌈size/N⌉",
    source=f"{STAGE_3} partition_grads",
    certainty="modelled",
)
CAST_SHARDS = replace(
    OFFLOADED_GRADIENTS,
    name="gradient shards in the master weights' type",
    unit="m",
    count="⌈size/N⌉, to NVMe Σ⌈size/N⌉ in the bucket",
)
OVERFLOW = TermKind(
    "test for overflow",
    "buffers",
    unit="g + 1",
    count="Σ⌈size/N⌉",
    source=f"{STAGE_3} has_overflow",
    certainty="exact",
)
NORM = replace(stage_1_2.NORM, count="largest shard", source=f"{STAGE_3} get_grad_norm_direct")
STEP_GRADIENTS = replace(
    stage.STEP_GRADIENTS, count="sub-group", source=f"{STAGE_3} _prepare_fp32_grad_for_sub_group"
)
FLAT_GRADIENTS = replace(stage_1_2.FLAT_GRADIENTS, unit="g", count="sub-group", source=STEP_GRADIENTS.source)

_NORM_PIECE = 250_000_000
"""Elements: `_constant_buffered_norm2`."""


def shard(parameter: Parameter, world_size: int) -> int:
    """Elements of one rank's shard; each parameter is padded by itself (`Init._partition_param`)."""
    return ceil_div(parameter.elements, world_size)


def sub_groups(layout: Layout, settings: Settings) -> list[list[int]]:
    """Shards that the optimizer updates together: `_create_fp16_sub_groups`."""
    shards = [shard(parameter, settings.world_size) for parameter in layout.trainable]
    if settings.sub_group >= sum(shards):
        return [shards]
    groups: list[list[int]] = [[]]
    for number, elements in enumerate(shards):
        groups[-1].append(elements)
        if sum(groups[-1]) >= settings.sub_group and number < len(shards) - 1:
            groups.append([])
    return groups


class Stage3(Stage):
    """One rank of stage 3.

    Args:
        stored: the parameters.
        calls: of a micro-batch in order; empty in the first pass, when DeepSpeed does not know them.
    """

    def __init__(
        self, timeline: Timeline, stored: StoredLayout, settings: Settings, calls: Iterable[ModuleCall]
    ) -> None:
        self._timeline, self._stored, self._settings = timeline, stored, settings
        self._layout = stored.layout
        self._e = settings.parameter_bytes
        self._submodules: dict[ModuleCall, list[Submodule]] = {}
        submodules = [one for call in calls for one in self._submodules_of(call)]
        self._coordinator = Coordinator(timeline, settings, submodules)
        self._groups = sub_groups(stored.layout, settings)
        self._bucket: list[Parameter] = []
        self._in_bucket = 0
        self._own_storage: list[Parameter] = []
        self._states = OptimizerStates(settings, "Σ⌈size/N⌉")
        self._temporary = settings.optimizer.temporary("sub-group")

    @property
    def partition(self) -> int:
        """Elements of the optimizer states on this rank."""
        return sum(map(sum, self._groups))

    @property
    def _offloads(self) -> bool:
        return self._settings.offload_optimizer != "none"

    def start(self) -> None:
        """`_create_fp32_partitions` clones the cast parameters; then `_setup_for_real_optimizer`."""
        timeline, settings, world = self._timeline, self._settings, self._settings.world_size
        small = [one for one in self._layout.parameters if self._coordinator.persists(one)]
        persistent = sum(one.elements for one in small)
        frozen = [one for one in small if not one.trainable]
        # bitsandbytes packs weights on the GPU before zero.Init partitions them.
        timeline.spike(WHOLE, self._e, sum(one.elements for one in self._layout.packed))
        # zero.Init builds a parameter whole, then partitions it.
        timeline.spike(UNDIVIDED, self._e, 2 * max(one.elements for one in self._layout.parameters))
        on_gpu = self._layout.parameters if settings.offload_param == "none" else frozen
        timeline.hold(PARAMETERS, self._e, sum(shard(one, world) for one in on_gpu))
        timeline.hold(PERSISTENT, self._e, persistent if world > 1 else 0)
        if not self._offloads:
            timeline.hold(MASTER, settings.master_bytes, self.partition)
            timeline.spike(CLONES, settings.master_bytes, max(map(sum, self._groups)))
            timeline.hold(GRADIENTS, settings.accumulation_bytes, self.partition)
        timeline.hold(REDUCE_BUCKET, settings.communication_bytes, settings.reduce_bucket)

    def make_states(self) -> None:
        if not self._offloads:
            self._states.hold(self._timeline, map(sum, self._groups))

    def begin_pass(self, *, boundary: bool) -> None:
        self._coordinator.reset()

    def fetch(self, call: ModuleCall, *, forward: bool) -> None:
        for submodule in self._submodules_of(call):
            self._coordinator.fetch(submodule)

    def release(self, call: ModuleCall, *, forward: bool) -> None:
        for submodule in self._submodules_of(call):
            self._coordinator.release(submodule)

    def save(self, call: ModuleCall, *, only_trained: bool = False) -> None:
        """Only torch.nn.Linear is replaced by a function that keeps no weight: runtime/zero/linear.py."""
        for submodule in self._submodules_of(call):
            self._coordinator.save(submodule, only_trained=only_trained)

    def unsave(self, call: ModuleCall) -> None:
        for submodule in self._submodules_of(call):
            self._coordinator.unsave(submodule)

    def _submodules_of(self, call: ModuleCall) -> list[Submodule]:
        if call not in self._submodules:
            self._submodules[call] = self._modules_within(call)
        return self._submodules[call]

    def _modules_within(self, call: ModuleCall) -> list[Submodule]:
        """The modules of a call: each adapter is one, and so is a module without parameters."""
        stored = self._stored.of
        if call.inner:
            return [Submodule(call.module, stored(call.parameters), is_leaf=True)]
        adapters = [one for one in call.parameters if one.adapter]
        return [
            Submodule(
                call.module,
                stored(one for one in call.parameters if not one.adapter),
                within=stored(call.within),
            ),
            *(Submodule(one.module, (one,)) for one in adapters),
        ]

    def ready(self, parameter: Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: copy and free gradients that fit the bucket."""
        bucket = self._settings.reduce_bucket
        if self._bucket and self._in_bucket + parameter.elements > bucket:
            self._reduce()
        if self._in_bucket + parameter.elements > bucket:
            self._own_storage.append(parameter)
        else:
            self._timeline.free(NEW_GRADIENT, self._e, parameter.elements)
        self._bucket.append(parameter)
        self._in_bucket += parameter.elements

    def _reduce(self) -> None:
        """`__avg_scatter_grads` with reduce_scatter_coalesced, then `partition_grads`."""
        timeline, settings, world = self._timeline, self._settings, self._settings.world_size
        padded = sum(shard(one, world) * world for one in self._bucket)
        alone = len(self._bucket) == 1 and self._bucket[0].elements % world == 0
        timeline.hold(FLAT_COPY, settings.communication_bytes, 0 if alone else padded)
        if self._offloads:
            self._offload()
        timeline.free_all(FLAT_COPY)
        for one in self._own_storage:
            timeline.free(NEW_GRADIENT, self._e, one.elements)
        self._own_storage, self._bucket, self._in_bucket = [], [], 0

    def _offload(self) -> None:
        """`partition_grads`: shard by shard; those for NVMe are written together."""
        timeline, settings = self._timeline, self._settings
        g, m = settings.accumulation_bytes, settings.master_bytes
        for elements in (shard(one, settings.world_size) for one in self._bucket):
            timeline.hold(OFFLOADED_GRADIENTS, g, elements)
            timeline.spike(NORM, 8, min(elements, _NORM_PIECE))
            if settings.offload_optimizer == "nvme":
                timeline.hold(CAST_SHARDS, m, elements)
            else:
                timeline.spike(CAST_SHARDS, m, elements)
            timeline.free(OFFLOADED_GRADIENTS, g, elements)
        timeline.free_all(CAST_SHARDS)

    def end_backward(self, *, boundary: bool) -> None:
        """`independent_gradient_partition_epilogue`, then `backward_epilogue`."""
        if self._bucket:
            self._reduce()
        self._coordinator.release_leftovers()

    def step(self) -> None:
        """`step`: overflow test, norm, then each sub-group; with offload nothing happens on the GPU."""
        timeline, settings, world = self._timeline, self._settings, self._settings.world_size
        self._coordinator.release_all()
        if self._offloads:
            return
        if settings.precision == "fp16":
            timeline.spike(OVERFLOW, settings.accumulation_bytes + 1, self.partition)
        largest = max((shard(one, world) for one in self._layout.trainable), default=0)
        timeline.spike(NORM, 8, largest)
        is_cast = settings.accumulation_bytes != settings.master_bytes
        for group in self._groups:
            elements = sum(group)
            timeline.hold(STEP_GRADIENTS, settings.master_bytes, elements)
            if len(group) > 1 and is_cast:
                timeline.spike(FLAT_GRADIENTS, settings.accumulation_bytes, elements)
            timeline.spike(self._temporary, settings.temporary_bytes, elements)
            timeline.free_all(STEP_GRADIENTS)

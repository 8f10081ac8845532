"""Host memory of one rank: the model while it is built, and what offload keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerokit.memory import stage
from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.param_coordinator import secondary_shard
from zerokit.memory.pinned_memory import STAGING, PinnedMemory
from zerokit.memory.settings import Settings
from zerokit.memory.stage_1_2 import flattens_on_gpu, slices_of
from zerokit.memory.stage_3 import num_gpu_groups, shard, sub_groups
from zerokit.memory.term import kinds_of
from zerokit.memory.timeline import Held, Timeline
from zerokit.reporting.phases import Phase
from zerokit.resolving.nvme_buffers import SMALLEST_FILE_BYTES

KINDS = kinds_of(__file__)

PINNED_PIECE = 2**29
"""Most bytes of a pinned piece of an offloaded activation: torch rounds each up to a power of two."""
_ALIGNED = 1024
"""AIO_ALIGNED_BYTES: tensors on NVMe are padded to a multiple of it."""


@dataclass(frozen=True)
class HostReplay:
    """Host memory and NVMe files of one rank."""

    steady: Held
    fullest: dict[Phase, Held]
    nvme: Held


def aligned(elements: int, size: int) -> int:
    """KiB of a tensor on NVMe."""
    return ceil_div(elements * size, _ALIGNED)


def replay_host(
    layout: Layout,
    settings: Settings,
    *,
    rank: int,
    builds_full_copy: bool,
    untied: int,
    made_first: bool = False,
    one_by_one: int = 0,
    checkpoints: tuple[int, int] = (0, 0),
) -> HostReplay:
    """Replay the building of the model and its optimizer, and the first step.

    Args:
        layout: the parameters.
        settings: of the run.
        rank: the rank to replay.
        builds_full_copy: whether the rank builds or loads the whole model on the host.
        untied: elements of the output matrix before it is tied.
        one_by_one: elements of the largest weight if weights are packed on the GPU one by one; else 0.
        checkpoints: layers with an offloaded input, and its bytes; each is pinned in pieces.
        made_first: whether the script makes an optimizer with states while the model is on the host.
    """
    host, e = _Host(layout, settings, rank), settings.parameter_bytes
    timeline = host.timeline
    timeline.spike(KINDS.ONE_WEIGHT, e, one_by_one)
    if builds_full_copy:
        adapters = sum(parameter.elements for parameter in layout.parameters if parameter.adapter)
        timeline.hold(KINDS.MODEL_COPY, e, layout.num_parameters - adapters)
        timeline.spike(KINDS.UNTIED, e, untied)
        timeline.hold(KINDS.MODEL_COPY, e, adapters)
        if made_first:
            timeline.hold(host.early_states, e, layout.num_trainable)
        timeline.free_all(KINDS.MODEL_COPY)
    if settings.wrapper == "zero_1_2" and flattens_on_gpu(layout, settings) is False:
        flat = slices_of(layout, settings.zero_ranks).partition * settings.zero_ranks
        timeline.spike(KINDS.FLAT_ON_HOST, 2 * e, flat)
    if settings.stage in (1, 2) and settings.offload_optimizer != "none":
        host.flat_partition()
    elif settings.stage == 3:
        host.shards(untied)
    if settings.optimizer.paged and settings.offload_optimizer == "none":
        host.paged_states()
    layers, size = checkpoints
    if layers:
        timeline.enter("forward")
    for _ in range(layers):
        host.pin_pieces(size)
    return HostReplay(timeline.held, timeline.fullest, host.files.held)


def parameters_alone(layout: Layout, settings: Settings) -> tuple[int, int]:
    """Host bytes and bytes of files of one rank's offloaded parameters, without an optimizer."""
    host = _Host(layout, settings, 0)
    host._single_shards()
    return host.timeline.total, host.files.total


class _Host:
    """Host memory of one rank over time."""

    def __init__(self, layout: Layout, settings: Settings, rank: int) -> None:
        self.timeline = Timeline()
        self.files = Timeline()
        self._layout, self._settings, self._rank = layout, settings, rank
        self._memory = PinnedMemory(self.timeline)
        divided = "Σ⌈size/N⌉" if settings.stage == 3 else "Φₜ/N"
        self._states = OptimizerStates(settings, divided)
        self._moments = replace(self._states.moments, device="pageable")
        self._temporary = replace(settings.optimizer.kind_of("TEMPORARY", divided), unit="2·m", device="pageable")
        self.early_states = replace(self._moments, name="states of the script's own optimizer", unit="e", count="Φₜ")

    def pin_pieces(self, size: int) -> None:
        """An offloaded input, whose memory torch keeps for the next step."""
        for place in range(0, size, PINNED_PIECE):
            self._memory.pin(KINDS.CHECKPOINTS, 1, min(PINNED_PIECE, size - place))

    def paged_states(self) -> None:
        """States of the optimizer on the GPU that are in unified memory."""
        layout, settings = self._layout, self._settings
        if settings.stage == 0:
            tensors = stage.tensors_updated(layout, settings)
        elif settings.stage == 3:
            tensors = [sum(group) for group in sub_groups(layout, settings)]
        else:
            tensors = [slices_of(layout, settings.zero_ranks).partition]
        self.timeline.enter("step")
        self._states.hold_paged(self.timeline, tensors)

    def flat_partition(self) -> None:
        """Stages 1 and 2: `DeepSpeedZeroOptimizer.__init__`, stage_1_and_2.py."""
        settings, slices = self._settings, slices_of(self._layout, self._settings.zero_ranks)
        e, master, part, pinned = (
            settings.parameter_bytes,
            settings.master_bytes,
            slices.partition,
            settings.pin_optimizer,
        )
        self._memory.keep(KINDS.MASTER, master, part, pinned=pinned)
        self._memory.keep(KINDS.BIT16, e, part, pinned=pinned)
        self.timeline.hold(STAGING, e, part if pinned else 0)  # a local name holds on to it
        self._memory.keep(KINDS.ONE_GRADIENT, e, max(one.elements for one in self._layout.trainable), pinned=pinned)
        self._memory.keep(KINDS.FP32_GRADIENTS, master, part, pinned=pinned)
        self.timeline.free_all(STAGING)
        if settings.stage == 2 and settings.accumulation_steps > 1 and settings.accumulation_bytes == e:
            # This happens in the first micro-batch, before the optimizer has states.
            for one in reversed(self._layout.trainable):
                if self._rank in slices.ranks(one):
                    self._memory.keep(KINDS.ACCUMULATED, e, one.elements, pinned=pinned)
        self.timeline.enter("step")
        self._hold_moments(part)

    def _hold_moments(self, elements: int) -> None:
        settings = self._settings
        self.timeline.hold(self._moments, settings.state_bytes, elements)
        if settings.optimizer.kind not in ("cpu_adam", "lion"):
            # torch's single-tensor loop makes at most two temporaries per tensor.
            self.timeline.spike(self._temporary, 2 * settings.master_bytes, elements)

    def shards(self, untied: int) -> None:
        """Stage 3: zero.Init, then `DeepSpeedZeroOptimizer_Stage3.__init__`, stage3.py."""
        settings, world = self._settings, self._settings.zero_ranks
        groups = sub_groups(self._layout, settings)
        total = sum(map(sum, groups))
        single = self._single_shards() if settings.offload_param != "none" else []
        e, number = settings.parameter_bytes, ceil_div(untied, world)
        if settings.offload_param == "cpu" and settings.pin_param and number:
            for kind, copies in ((KINDS.SINGLE_SHARDS, 1), (KINDS.SECONDARY_SHARDS, world // settings.hpz_partition)):
                if kind is KINDS.SINGLE_SHARDS or settings.hpz_partition > 1:
                    self._memory.pin(kind, e, copies * number)
                    self._memory.unpin(kind, e, copies * number)
        elif settings.offload_param == "nvme" and e * number >= SMALLEST_FILE_BYTES:
            self.files.hold(KINDS.PARAMETER_FILES, _ALIGNED, aligned(number, e))  # its file stays
        in_flat = self._flat_parameters(total, single)
        if settings.offload_optimizer != "none":
            if settings.offload_optimizer == "nvme":
                largest = aligned(max(map(sum, groups)), settings.master_bytes)
                self.timeline.hold(KINDS.SWAP_BUFFERS, _ALIGNED, settings.optimizer_buffers * largest)
            kept = num_gpu_groups(groups, settings)
            self._masters(groups, in_flat, kept)
            self._memory.keep(KINDS.GRADIENT_SHARDS, settings.accumulation_bytes, total, pinned=settings.pin_optimizer)
            self.timeline.enter("step")
            for group in groups[kept:]:
                self._hold_moments(sum(group))
                if self._swaps(group):
                    self._to_nvme(group)
            if settings.precision == "fp16":
                # `has_overflow` calls isinf on all gradients at once.
                self.timeline.spike(KINDS.OVERFLOW, settings.accumulation_bytes + 1, total)
        if single and settings.hpz_partition > 1:  # each step makes them anew
            sizes = [secondary_shard(one, settings) for one in single if one.trainable]
            if settings.pin_param:
                self.timeline.spike(STAGING, e, max(sizes, default=0))
            else:
                self.timeline.free(KINDS.SECONDARY_SHARDS, e, sum(sizes))

    def _single_shards(self) -> list[Parameter]:
        """Parameters that are partitioned into host memory one by one: `Init._partition_param`."""
        settings, world, e = self._settings, self._settings.zero_ranks, self._settings.parameter_bytes
        if settings.offload_param == "nvme":
            buffers = settings.param_buffers * aligned(settings.param_buffer_elements, e)
            self.timeline.hold(STAGING, _ALIGNED, buffers)  # made in pageable memory first
            self.timeline.hold(KINDS.PARAMETER_BUFFERS, _ALIGNED, buffers)
            self.timeline.free_all(STAGING)
        kept = []
        for one in self._layout.parameters:
            if one.elements <= settings.persistence_threshold:
                continue  # its shard stays on the GPU
            number = shard(one, world)
            if settings.offload_param == "nvme" and e * number >= SMALLEST_FILE_BYTES:
                self.files.hold(KINDS.PARAMETER_FILES, _ALIGNED, aligned(number, e))
            else:
                self._memory.keep(KINDS.SINGLE_SHARDS, e, number, pinned=settings.pin_param)
                kept.append(one)
            if settings.hpz_partition > 1:
                self._memory.keep(KINDS.SECONDARY_SHARDS, e, secondary_shard(one, settings), pinned=settings.pin_param)
        return kept

    def _flat_parameters(self, total: int, single: list[Parameter]) -> bool:
        """One flat buffer for all trained shards; without offload it exists only while copying.

        Returns:
            Whether all trained shards fit in memory.
        """
        settings, e, world = self._settings, self._settings.parameter_bytes, self._settings.zero_ranks
        if settings.offload_param == "none":
            self.timeline.spike(STAGING, e, total)  # defragment, runtime/zero/utils.py
            return True
        flat = min(total, settings.max_in_cpu) if settings.offload_param == "nvme" else total
        self._memory.pin(KINDS.PARAMETER_SHARDS, e, flat)
        if flat == total:
            for one in single:
                if one.trainable:
                    self._memory.drop(KINDS.SINGLE_SHARDS, e, shard(one, world), pinned=settings.pin_param)
            return True
        # Sized by whole parameters, not shards: `reserve_partitioned_swap_space`.
        self.timeline.hold(KINDS.WRITE_BUFFER, _ALIGNED, max(self._whole_sizes()))
        return False

    def _whole_sizes(self) -> list[int]:
        """KiB of the whole parameters of each sub-group."""
        trained, e = list(self._layout.trainable), self._settings.parameter_bytes
        sizes, place = [], 0
        for group in sub_groups(self._layout, self._settings):
            sizes.append(sum(aligned(one.elements, e) for one in trained[place : place + len(group)]))
            place += len(group)
        return sizes

    def _masters(self, groups: list[list[int]], in_flat: bool, kept: int) -> None:
        """`_create_fp32_partitions` and `initialize_optimizer_states`; `kept`: sub-groups on the GPU."""
        settings, master = self._settings, self._settings.master_bytes
        previous = 0
        for group in groups[kept:]:
            elements = sum(group)
            if self._swaps(group):
                self.files.hold(KINDS.STATE_FILES, _ALIGNED, aligned(elements, master))
                if not in_flat:
                    self.timeline.spike(STAGING, master, elements)
                continue
            self.timeline.hold(STAGING, master, elements)
            self.timeline.free(STAGING, master, previous)
            self.timeline.hold(KINDS.MASTER_3, master, elements)
            previous = elements
        self.timeline.free_all(STAGING)
        self.timeline.hold(KINDS.ZEROS, master, max(map(sum, groups)))
        for group in groups[:kept]:  # made here, and moved
            self._memory.keep(KINDS.FP32_GRADIENTS_3, master, sum(group), pinned=settings.pin_optimizer)
            self._memory.drop(KINDS.FP32_GRADIENTS_3, master, sum(group), pinned=settings.pin_optimizer)
        for group in groups[kept:]:
            if not self._swaps(group):
                self._memory.keep(KINDS.FP32_GRADIENTS_3, master, sum(group), pinned=settings.pin_optimizer)
        self.timeline.free_all(KINDS.ZEROS)

    def _swaps(self, group: list[int]) -> bool:
        settings = self._settings
        has_a_file = settings.master_bytes * sum(group) >= SMALLEST_FILE_BYTES
        return settings.offload_optimizer == "nvme" and has_a_file

    def _to_nvme(self, group: list[int]) -> None:
        """Write the states to NVMe after each sub-group; gradients have files too."""
        settings, files = self._settings, self.files
        self.timeline.free_all(self._moments)
        files.hold(KINDS.STATE_FILES, _ALIGNED, settings.optimizer.states * aligned(sum(group), settings.moment_bytes))
        large = [one for one in group if settings.master_bytes * one >= SMALLEST_FILE_BYTES]
        files.hold(KINDS.GRADIENT_FILES, settings.master_bytes, sum(large))

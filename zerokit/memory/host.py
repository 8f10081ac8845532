"""The host's side of one rank: what is built there, and what offload keeps there.

torch's allocator of pinned memory rounds to powers of two and keeps what is freed for the next request of
that size; buffers that DeepSpeed locks by itself for NVMe are exact
(csrc/aio/py_lib/deepspeed_pin_tensor.cpp).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.settings import Settings
from zerokit.memory.stage_1_2 import slices_of
from zerokit.memory.stage_3 import shard, sub_groups
from zerokit.memory.timeline import Timeline
from zerokit.reporting.phases import Phase

MODEL_COPY = "the model as it is built or loaded"
UNTIED = "output matrix before it is tied"
MASTER = "fp32 copy of the parameters"
BIT16 = "16-bit copy on its way to the GPU"
MOMENTS = "optimizer states"
FP32_GRADIENTS = "fp32 gradients"
GRADIENT_SHARDS = "gradient shards"
EARLY_STATES = "states of the script's own optimizer"
ONE_GRADIENT = "buffer for one gradient"
ACCUMULATED = "accumulated gradients"
PARAMETER_SHARDS = "parameter shards"
SINGLE_SHARDS = "shards of single parameters"
CACHED = "pinned memory that torch keeps"
STEP = "temporary tensors of the optimizer"
OVERFLOW = "test for overflow"
STAGING = "copies in the making"
SWAP_BUFFERS = "buffers for optimizer states on NVMe"
PARAMETER_BUFFERS = "buffers for parameters on NVMe"
WRITE_BUFFER = "buffer for writing parameters to NVMe"

PINNED = "pinned:"
PAGEABLE = "pageable:"

_SWAPPABLE = 1024**2
"""Bytes from which a tensor goes to NVMe: MIN_AIO_BYTES, runtime/swap_tensor/utils.py."""
_ALIGNED = 1024
"""Bytes that a tensor on NVMe is a multiple of: AIO_ALIGNED_BYTES."""


@dataclass(frozen=True)
class HostReplay:
    """What the host and NVMe hold of one rank, by device and name."""

    steady: dict[str, int]
    fullest: dict[Phase, dict[str, int]]
    nvme: dict[str, int]


def power_of_two(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()


def aligned(elements: int, size: int) -> int:
    """Bytes of a tensor on NVMe."""
    return -(-elements * size // _ALIGNED) * _ALIGNED


def replay_host(
    layout: Layout,
    settings: Settings,
    *,
    rank: int,
    builds_full_copy: bool,
    untied_bytes: int,
    made_first: bool = False,
) -> HostReplay:
    """Build the model and its optimizer, then run the first step, which makes the optimizer's states.

    Args:
        layout: the parameters.
        settings: of the run.
        rank: whose host memory.
        builds_full_copy: the rank makes or reads the whole model on the host first.
        untied_bytes: of the output matrix that a tied model is built with before it is tied.
        made_first: the script makes an optimizer whose states exist at once, while the model is on the host.
    """
    host = _Host(layout, settings, rank)
    if builds_full_copy:
        adapters = sum(parameter.elements for parameter in layout.parameters if parameter.adapter)
        host.pageable(MODEL_COPY, settings.parameter_bytes * (layout.num_parameters - adapters))
        host.timeline.spike(PAGEABLE + UNTIED, untied_bytes)
        host.pageable(MODEL_COPY, settings.parameter_bytes * adapters)
        if made_first:
            host.pageable(EARLY_STATES, settings.parameter_bytes * layout.num_trainable)
        host.free(MODEL_COPY)
    if settings.stage in (1, 2) and settings.offload_optimizer != "none":
        host.flat_partition()
    elif settings.stage == 3:
        host.shards(untied_bytes)
    return HostReplay(
        {name: size for name, size in host.timeline.held.items() if size}, host.timeline.fullest, host.nvme
    )


class _Host:
    """The host memory of one rank as it fills."""

    def __init__(self, layout: Layout, settings: Settings, rank: int) -> None:
        self.timeline = Timeline()
        self.nvme: dict[str, int] = Counter()
        self._layout, self._settings, self._rank = layout, settings, rank
        self._cache: Counter[int] = Counter()

    def pageable(self, name: str, number: int) -> None:
        self.timeline.hold(PAGEABLE + name, number)

    def free(self, name: str) -> None:
        """Give back all pageable memory of that name."""
        self.timeline.free_all(PAGEABLE + name)

    def pin(self, name: str, number: int, *, copied: bool = True) -> None:
        """Pinned by torch; the tensor that is pinned is there as well until then, if `copied`."""
        if copied:
            self.pageable(STAGING, number)
        size = power_of_two(number)
        if self._cache[size]:
            self._cache[size] -= 1
            self.timeline.free(PINNED + CACHED, size)
        self.timeline.hold(PINNED + name, size)
        if copied:
            self.timeline.free(PAGEABLE + STAGING, number)

    def unpin(self, name: str, number: int) -> None:
        """Freed, and kept by torch."""
        size = power_of_two(number)
        self.timeline.free(PINNED + name, size)
        self._cache[size] += 1
        self.timeline.hold(PINNED + CACHED, size)

    def keep(self, name: str, number: int, *, pinned: bool) -> None:
        """In pinned memory if `pinned`."""
        if pinned:
            self.pin(name, number)
        else:
            self.pageable(name, number)

    def flat_partition(self) -> None:
        """Stages 1 and 2: `DeepSpeedZeroOptimizer.__init__`, stage_1_and_2.py."""
        settings, slices = self._settings, slices_of(self._layout, self._settings.world_size)
        e, master, part, pinned = (
            settings.parameter_bytes,
            settings.master_bytes,
            slices.partition,
            settings.pin_optimizer,
        )
        self.keep(MASTER, master * part, pinned=pinned)
        self.keep(BIT16, e * part, pinned=pinned)
        self.pageable(STAGING, e * part if pinned else 0)  # a local name holds on to it
        self.keep(ONE_GRADIENT, e * max(one.elements for one in self._layout.trainable), pinned=pinned)
        self.keep(FP32_GRADIENTS, master * part, pinned=pinned)
        self.free(STAGING)
        if settings.stage == 2 and settings.accumulation_steps > 1 and settings.accumulation_bytes == e:
            # In the first micro-batch, before the optimizer has any states.
            for one in reversed(self._layout.trainable):
                if self._rank in slices.ranks(one):
                    self.keep(ACCUMULATED, e * one.elements, pinned=pinned)
        self.timeline.enter("step")
        self._moments(part)

    def _moments(self, elements: int) -> None:
        settings = self._settings
        self.pageable(MOMENTS, round(settings.optimizer.states * _cpu_state_bytes(settings) * elements))
        if settings.optimizer.kind not in ("cpu_adam", "lion"):
            # torch's loop over single tensors: two temporaries of each at most.
            self.timeline.spike(PAGEABLE + STEP, 2 * settings.master_bytes * elements)

    def shards(self, untied_bytes: int) -> None:
        """Stage 3: zero.Init, then `DeepSpeedZeroOptimizer_Stage3.__init__`, stage3.py."""
        settings, world = self._settings, self._settings.world_size
        groups = sub_groups(self._layout, settings)
        total = sum(map(sum, groups))
        single = self._single_shards() if settings.offload_param != "none" else []
        number = untied_bytes // world
        if settings.offload_param == "cpu" and settings.pin_param and number:
            self.pin(SINGLE_SHARDS, number)
            self.unpin(SINGLE_SHARDS, number)
        elif settings.offload_param == "nvme" and number >= _SWAPPABLE:
            self.nvme["parameters"] += number  # its file stays
        in_flat = self._flat_parameters(total, single)
        if settings.offload_optimizer != "none":
            if settings.offload_optimizer == "nvme":
                largest = aligned(max(map(sum, groups)), settings.master_bytes)
                self.timeline.hold(PINNED + SWAP_BUFFERS, settings.optimizer_buffers * largest)
            self._masters(groups, in_flat)
            self.keep(GRADIENT_SHARDS, settings.accumulation_bytes * total, pinned=settings.pin_optimizer)
            self.timeline.enter("step")
            for group in groups:
                self._moments(sum(group))
                if self._swaps(group):
                    self._to_nvme(group)
            if settings.precision == "fp16":
                # isinf over all gradients at once: `has_overflow`.
                self.timeline.spike(PAGEABLE + OVERFLOW, (settings.accumulation_bytes + 1) * total)

    def _single_shards(self) -> list[Parameter]:
        """Parameters that are cut into host memory one by one: `Init._partition_param`."""
        settings, world, e = self._settings, self._settings.world_size, self._settings.parameter_bytes
        if settings.offload_param == "nvme":
            buffers = settings.param_buffers * aligned(settings.param_buffer_elements, e)
            self.pageable(STAGING, buffers)  # made in pageable memory first
            self.timeline.hold(PINNED + PARAMETER_BUFFERS, buffers)
            self.free(STAGING)
        kept = []
        for one in self._layout.parameters:
            if one.elements <= settings.persistence_threshold:
                continue  # its shard stays on the GPU
            number = e * shard(one, world)
            if settings.offload_param == "nvme" and number >= _SWAPPABLE:
                self.nvme["parameters"] += aligned(shard(one, world), e)
            else:
                self.keep(SINGLE_SHARDS, number, pinned=settings.pin_param)
                kept.append(one)
        return kept

    def _flat_parameters(self, total: int, single: list[Parameter]) -> bool:
        """One buffer for all trained shards; without offload only on its way through the host.

        Returns:
            Whether all trained shards have a place in memory.
        """
        settings, e, world = self._settings, self._settings.parameter_bytes, self._settings.world_size
        if settings.offload_param == "none":
            self.timeline.spike(PAGEABLE + STAGING, e * total)  # defragment, runtime/zero/utils.py
            return True
        flat = min(total, settings.max_in_cpu) if settings.offload_param == "nvme" else total
        self.pin(PARAMETER_SHARDS, e * flat)
        groups = sub_groups(self._layout, settings)
        fits = flat == total or sum(groups[0]) <= flat
        if flat == total:
            for one in single:
                if one.trainable:
                    number = e * shard(one, world)
                    if settings.pin_param:
                        self.unpin(SINGLE_SHARDS, number)
                    else:
                        self.timeline.free(PAGEABLE + SINGLE_SHARDS, number)
            return True
        # Sized by whole parameters, not by shards: `reserve_partitioned_swap_space`.
        largest = max(self._whole_sizes(groups))
        self.timeline.hold(PINNED + WRITE_BUFFER, largest)
        return fits and flat == total

    def _whole_sizes(self, groups: list[list[int]]) -> list[int]:
        trained, e = list(self._layout.trainable), self._settings.parameter_bytes
        sizes, place = [], 0
        for group in groups:
            sizes.append(sum(aligned(one.elements, e) for one in trained[place : place + len(group)]))
            place += len(group)
        return sizes

    def _masters(self, groups: list[list[int]], in_flat: bool) -> None:
        """`_create_fp32_partitions` and `initialize_optimizer_states`."""
        settings, master = self._settings, self._settings.master_bytes
        previous = 0
        for group in groups:
            number = master * sum(group)
            if self._swaps(group):
                self.nvme["optimizer states"] += aligned(sum(group), master)
                if not in_flat:
                    self.timeline.spike(PAGEABLE + STAGING, number)
                continue
            self.pageable(STAGING, number)
            self.timeline.free(PAGEABLE + STAGING, previous)
            self.pageable(MASTER, number)
            previous = number
        self.free(STAGING)
        self.pageable("gradients of zeros", master * max(map(sum, groups)))
        for group in groups:
            if not self._swaps(group):
                self.keep(FP32_GRADIENTS, master * sum(group), pinned=settings.pin_optimizer)
        self.free("gradients of zeros")

    def _swaps(self, group: list[int]) -> bool:
        settings = self._settings
        return settings.offload_optimizer == "nvme" and settings.master_bytes * sum(group) >= _SWAPPABLE

    def _to_nvme(self, group: list[int]) -> None:
        """The states leave the memory after each sub-group; its gradients are in files too."""
        settings = self._settings
        self.free(MOMENTS)
        states = round(settings.optimizer.states)
        self.nvme["optimizer states"] += states * aligned(sum(group), settings.master_bytes)
        large = [one for one in group if settings.master_bytes * one >= _SWAPPABLE]
        self.nvme["gradients"] += settings.master_bytes * sum(large)


def _cpu_state_bytes(settings: Settings) -> int:
    """DeepSpeedCPUAdam keeps its states in fp32 unless it is told otherwise (ops/adam/cpu_adam.py)."""
    return 4 if settings.optimizer.kind == "cpu_adam" else settings.moment_bytes

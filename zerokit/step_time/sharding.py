"""What ZeRO adds to a step: gathers and reductions of each stage, the optimizer's step, offload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import ceil
from operator import add

from zerokit.hardware.costs.card_costs import CardCosts, Copy
from zerokit.memory.model_states import ceil_div
from zerokit.memory.settings import Settings
from zerokit.step_time.layers import host_seconds, moving_seconds
from zerokit.step_time.streams import Streams, Work

_BYTES_OF_STEP = (54, 54, 54, 62)
"""Per element, without the optimizer's states: tests for overflow, norm, casts, clipping, weights."""
_NOTHING = 0.0, 0.0, 0.0, 0.0


@dataclass(frozen=True, eq=False)
class Module:
    """The parameters of a layer, or of what is outside the layers."""

    trained: tuple[int, ...]
    """Elements of each parameter with a gradient."""
    gathered: tuple[int, ...]
    """Elements of each parameter that stage 3 divides."""
    tensors: int
    """All parameters."""


class Sharding:
    """The seconds that ZeRO adds, on one rank."""

    def __init__(
        self,
        costs: CardCosts,
        settings: Settings,
        layers: int,
        modules: tuple[Module, Module],
        place: tuple[int, int],
        threads: int | None,
    ) -> None:
        self.costs, self.settings = costs, settings
        self.layers, (self.layer, self.outside) = layers, modules
        self.ranks, self.host_threads = settings.zero_ranks, threads
        self.place = place
        """Of the ranks that share states: how many in each node, and nodes."""
        self.trained = sum(self.outside.trained) + layers * sum(self.layer.trained)
        self.tensors = len(self.outside.trained) + layers * len(self.layer.trained)
        # All layers ask for the same.
        self.host_seconds = cache(partial(host_seconds, costs))
        self.moved = cache(partial(moving_seconds, costs))
        self.copy = cache(partial(_copy_seconds, costs))
        self._pending = _NOTHING

    def collective(self, kind: str, num_bytes: float) -> float:
        """Seconds of a collective of the ranks that share states."""
        return self.costs.collective(kind, round(num_bytes), *self.place)  # type: ignore[arg-type]

    # ---- stage 3: parameters

    def gathers(
        self, module: Module, times: float = 1.0, *, again: bool = False, alone: bool = False
    ) -> tuple[float, float, float, float]:
        """Seconds of a module's gathers, their number, seconds of copies of its shards from the host, and CPU seconds.

        Args:
            times: how often; a fraction for a part of its parameters.
            again: after the first time in a step, from which on hpZ has a copy in each group of ranks.
            alone: each parameter by itself, instead of buckets that are prefetched.
        """
        groups = module.gathered if alone else list(_groups(module.gathered, self.settings.prefetch_bucket))
        is_whole = self.ranks == 1 and self.settings.offload_param == "none"
        if self.settings.stage < 3 or not groups or is_whole:
            return 0.0, 0, 0.0, 0.0
        e = self.settings.parameter_bytes
        near = min(self.settings.hpz_partition, self.place[0])
        place = (near, self.settings.hpz_partition // near) if again and near > 1 else self.place
        seconds = 0.0
        if self.ranks > 1:
            seconds = sum(self.costs.collective("all_gather", group * e, *place) for group in groups)
        copies, host = 0.0, self.host_seconds("gathered_parameter")
        if self.settings.offload_param != "none":
            host += self.host_seconds("offloaded_parameter")  # partition_parameters.py, _all_gather: copies each
            # Trained parameters are in one pinned buffer: stage3.py, _create_param_groups_fp16_flat_cpu_memory.
            pinned = self.settings.pin_param or len(module.trained) == module.tensors
            for one in module.gathered:
                copies += self.copy("h2d", ceil_div(one, self.ranks) * e, pinned=pinned)
                if self.settings.offload_param == "nvme":
                    copies += self.copy("nvme_read", ceil_div(one, self.ranks) * e)
        return seconds * times, len(groups) * times, copies * times, len(module.gathered) * host * times

    def gathered_outside(self, *, tied: bool, walks: int) -> tuple[float, float, float]:
        """How often the parameters outside the layers are gathered: before, after, and back before the layers.

        The output matrix stays for its backward pass; a tied one may also stay from and for the embedding.
        """
        layers, reuse = self.layers * sum(self.layer.gathered), self.settings.max_reuse_distance
        if not tied:
            return 0.5, 0.5, 0.5
        return 1.0, float(layers >= reuse), float((walks - 1) * layers >= reuse)

    def kept_layers(self, *, tied: bool, walks: int, moe: bool) -> float:
        """The last layers, which the backward pass does not gather again.

        Between their uses lie the output matrix, twice, and the later layers, as often as `walks` says.
        Source: `stage3_max_reuse_distance`, partitioned_param_coordinator.py `__params_to_release`.
        """
        head = sum(self.outside.gathered) * (1 if tied else 0.5)
        kept = max(self.settings.max_reuse_distance - 2 * head, 0) / walks / max(sum(self.layer.gathered), 1)
        return ceil(kept) if moe else kept  # experts are used together, with nothing between

    # ---- gradients

    @cached_property
    def _reductions(self) -> dict[Module, tuple[float, float, float, float]]:
        return {module: self._buckets(module) for module in (self.layer, self.outside)}

    def _buckets(self, module: Module) -> tuple[float, float, float, float]:
        """Seconds of the reductions of a module's gradients; their number, which may be a fraction; and how much
        of the module the largest one is, and the newest four, for which stage 3's host does not wait: one that
        fills, one that starts, and max_param_reduce_events."""
        kind = "reduce_scatter" if self.settings.stage == 3 else "all_reduce"
        bucket = max(min(self.settings.reduce_bucket, self.trained), 1)
        sizes = module.trained
        if sum(sizes) <= bucket:
            groups, share = [bucket], sum(sizes) / bucket
        else:
            groups, share = [0], 1.0
            for size in sizes:
                if groups[-1] and groups[-1] + size > bucket:
                    groups.append(0)
                groups[-1] += size
        g = self.settings.parameter_bytes
        seconds = [self.collective(kind, group * g) if self.ranks > 1 else 0.0 for group in groups]
        if share < 1:
            return seconds[0] * share, share, 1.0, 4 / max(share, 1e-9)
        return sum(seconds), len(groups), max(groups) / sum(groups), sum(groups[:4]) / sum(groups)

    def reduce(
        self, streams: Streams, module: Module, *, boundary: bool, share: float = 1.0, device: float = 0.0
    ) -> float:
        """Reduce the gradients of a module: buckets of stages 1 to 3, or nothing yet.

        Args:
            boundary: in the last micro-batch.
            share: of its gradients.
            device: seconds of its backward pass, which has just been launched.

        Returns:
            seconds of collectives that run while the backward pass goes on.
        """
        settings, g = self.settings, self.settings.parameter_bytes
        if not share or not module.trained or settings.stage == 0 or (settings.stage == 1 and not boundary):
            return 0.0
        elements, tensors = share * sum(module.trained), share * len(module.trained)
        seconds, count, largest, newest = self._reductions[module]
        seconds, count = share * seconds, share * count
        bytes_moved = elements * 2 * g * (3 + 1 / self.ranks)
        kernels = self.moved(bytes_moved, tensors + 3 * count)
        streams.host += count * (self.costs.collective_launch() + self.host_seconds("bucket"))
        if settings.stage < 3:
            streams.run(Work(0.0, tensors, memory_bound=kernels))
        if settings.stage == 3 or settings.overlap_comm:
            self._pending = tuple(map(add, self._pending, (seconds, count, elements / self.ranks, tensors)))
            before = streams.reducing
            if self._pending[1] >= 1:
                self._start_reduction(streams, device * (1 - largest), boundary=boundary)
        else:
            streams.exposed("collective", seconds)
        if settings.stage == 3:
            streams.reducing += kernels
            own = seconds + kernels
            if settings.offload_optimizer != "none" and settings.pin_optimizer:  # copies of shards, too
                own = max(streams.reducing - max(before, streams.device), own)
            waited = max(streams.reducing - newest * own, streams.device - newest * device)
            streams.host_until(waited, "collective")
            streams.reducing = max(streams.reducing, streams.device + (seconds + kernels) / max(count, 1))
        elif settings.offload_optimizer != "none" and boundary:
            self._offload_gradients(streams, elements / self.ranks, tensors)
        return seconds if settings.stage == 3 else 0.0

    def _start_reduction(self, streams: Streams, before: float = 0.0, *, boundary: bool) -> None:
        """Reduce full buckets beside the backward pass, the first one so many seconds before its end.

        Below stage 3 they wait for those before.
        """
        stage, (seconds, _, elements, tensors) = self.settings.stage, self._pending
        if stage < 3:
            streams.until(streams.reducing, "collective")
        begin = streams.device - before * (stage == 3) if self.settings.overlap_comm else 0.0
        streams.reducing = max(streams.reducing, begin, streams.host * (stage < 3)) + seconds
        self._pending = _NOTHING
        if stage == 3 and self.settings.offload_optimizer != "none":
            self._offload_shards(streams, elements, tensors, boundary=boundary)

    def end_backward(self, streams: Streams, *, boundary: bool) -> None:
        """Reduce the last bucket, which nothing hides: `independent_gradient_partition_epilogue`."""
        if self._pending[1]:
            self._start_reduction(streams, boundary=boundary)
        streams.until(streams.reducing, "collective")
        if self.settings.stage == 3:
            streams.wait()

    def _offload_shards(self, streams: Streams, elements: float, tensors: float, *, boundary: bool) -> None:
        """Stage 3 keeps gradients on the host, reads them back, and writes them in fp32 at last: partition_grads."""
        pinned, size = self.settings.pin_optimizer, elements / max(tensors, 1.0)
        copies = self.copy("d2h", 2 * size, pinned=pinned) + self.copy("h2d", 2 * size, pinned=pinned)
        host = self.host_seconds("gradient_shard")
        if boundary:
            copies += self.copy("d2h", 4 * size, pinned=pinned)
            host += self.host_seconds("offloaded_shard")
        streams.reducing = max(streams.reducing, streams.device)
        if not pinned:  # the host waits for each
            streams.host_until(streams.reducing, "collective")
            streams.until(streams.host + tensors * copies, "copy")
            streams.host += tensors * copies
        streams.reducing += tensors * copies
        streams.host += tensors * host

    def _offload_gradients(self, streams: Streams, elements: float, tensors: float) -> None:
        """Norms on the GPU, then fp32 copies to the host, on the compute stream."""
        own = tensors / self.ranks
        streams.host += own * self.host_seconds("own_parameter")
        streams.run(Work(0.0, 6 * own, memory_bound=self.moved(26 * elements, 6 * own)))
        streams.exposed("copy", self.copy("d2h", 4 * elements, pinned=self.settings.pin_optimizer))
        streams.host += max(streams.device - streams.host, 0.0) * min(1.0, own)

    def accumulate(self, elements: float, tensors: float) -> Work:
        """Adding gradients to those of earlier micro-batches: stages 0 and 1 keep them whole."""
        if self.settings.stage > 1:
            return Work()
        seconds = self.moved(3 * self.settings.parameter_bytes * elements, tensors)
        return Work(0.0, tensors, memory_bound=seconds)

    # ---- the optimizer's step

    def step(self, streams: Streams) -> None:
        """Norm, clipping, update, and the new parameters."""
        if not self.trained:
            return
        stage, e = self.settings.stage, self.settings.parameter_bytes
        if stage == 0 and self.ranks > 1:
            count = max(self.trained / 5e8, 1)
            seconds = count * self.collective("all_reduce", self.trained / count * e)
            streams.run(Work(1e-4, 2, memory_bound=self.moved(4 * e * self.trained, 2 + self.tensors)))
            streams.exposed("collective", seconds)
        if stage == 3:
            streams.host += self._tensors_in_all() * self.host_seconds("released_parameter")
        self.update(streams)

    def update(self, streams: Streams) -> None:
        """The part of the step that waits for all kernels before it."""
        settings, stage = self.settings, self.settings.stage
        own = self.trained / (self.ranks if stage else 1)
        tensors = self.tensors if stage in (0, 3) else self.tensors / self.ranks + 1
        each = {0: "parameter_step_0", 3: "parameter_step_3"}.get(stage, "own_parameter")
        streams.wait()  # for the test for overflow
        host = self.host_seconds(f"step_{min(stage, 1) if stage < 3 else 3}") + tensors * self.host_seconds(each)
        if settings.offload_optimizer != "none":
            self._step_on_host(streams, own)
        else:
            state = settings.optimizer.states * settings.moment_bytes
            seconds = self.moved(own * (_BYTES_OF_STEP[stage] + 2 * state), tensors * 6)
            before = 0.3 * seconds if settings.precision == "fp16" else seconds  # overflow is read before
            streams.run(Work(host, max(tensors * 6, 20), memory_bound=before))
            streams.wait()
            streams.run(Work(0.0, 1, memory_bound=seconds - before))
        streams.wait()
        if stage == 3:
            persistent = self._persistent()
            if persistent and self.ranks > 1:
                each_one = self.collective("all_gather", 8192)
                streams.host += persistent * self.host_seconds("persistent_gather")
                streams.device = max(streams.device + persistent * each_one, streams.host)
        elif stage and self.ranks > 1:
            gather = self.collective("all_gather", self.trained * settings.parameter_bytes)
            streams.exposed("collective", gather, self.costs.collective_launch())

    def _tensors_in_all(self) -> int:
        return self.outside.tensors + self.layers * self.layer.tensors

    def _persistent(self) -> int:
        outside = self.outside.tensors - len(self.outside.gathered)
        return outside + self.layers * (self.layer.tensors - len(self.layer.gathered))

    def _step_on_host(self, streams: Streams, own: float) -> None:
        """DeepSpeedCPUAdam: unscale, update, cast, and copy the parameters back."""
        settings, costs = self.settings, self.costs
        streams.wait()
        streams.host += self.host_seconds("step_3" if settings.stage == 3 else "step_1")
        if settings.offload_optimizer == "nvme":
            states = own * (4 + settings.state_bytes)
            streams.exposed("copy", self.copy("nvme_read", states + 4 * own))
            streams.wait()
            streams.exposed("copy", self.copy("nvme_write", states))
            streams.wait()
        # isinf and isnan of fp16 gradients on the host (stage3.py, has_overflow), and unscaling
        checked = 12 if settings.stage == 3 and settings.precision == "fp16" else 0
        streams.on_host(costs.on_host((8 + checked) * own, self.host_threads))
        streams.on_host(costs.cpu_adam(round(own), threads=self.host_threads))
        cast = costs.on_host(6 * own, self.host_threads)
        streams.host += cast
        streams.busy["copy" if settings.stage == 3 else "host_optimizer"] += cast
        if settings.offload_param == "none":
            pinned = settings.stage < 3 and settings.pin_optimizer
            streams.exposed("copy", self.copy("h2d", settings.parameter_bytes * own, pinned=pinned))
            streams.wait()


def _copy_seconds(costs: CardCosts, kind: Copy, num_bytes: float, *, pinned: bool = True) -> float:
    """Seconds of a copy, while the node's other ranks do the same."""
    return costs.copy(kind, round(num_bytes), pinned, costs.cluster.local_ranks)


def _groups(sizes: Sequence[int], bucket: int) -> Iterable[int]:
    """Elements that are gathered together: parameters in their order until the bucket is full."""
    elements = 0
    for size in sizes:
        elements += size
        if elements >= bucket:
            yield elements
            elements = 0
    if elements:
        yield elements

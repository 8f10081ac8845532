"""The seconds of an optimizer step of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerokit.config.dtypes import TORCH_NAMES
from zerokit.errors import ZerokitError
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.known import Class
from zerokit.hardware.costs.ranges import step_range
from zerokit.memory.settings import Settings, settings_of
from zerokit.memory.training_run import TrainingRun
from zerokit.step_time.groups import exchanges, places
from zerokit.step_time.layers import PARTS, Batch, Layers, Part
from zerokit.step_time.sharding import Module, Sharding
from zerokit.step_time.streams import Streams, Work

_OF_KERNELS: tuple[Class, ...] = ("matmul", "attention", "memory_bound")
_OTHERS: dict[str, Class] = {"host_optimizer": "host_optimizer", "communication": "collective", "copies": "copy"}


@dataclass(frozen=True)
class StepTime:
    """The seconds of an optimizer step: all its micro-batches and the update."""

    low_seconds: float
    """Nine of ten real runs should take between this and `high_seconds`."""
    seconds: float
    high_seconds: float
    parts: dict[str, float]
    """Seconds of compute, communication, copies, host_optimizer and launch; the sum is `seconds`."""
    run_class: str = ""
    """See :class:`zerokit.hardware.costs.ranges.StepRange`; also `narrower_with`."""
    narrower_with: list[str] = field(default_factory=list)
    of_costs: list[float] = field(default_factory=list)
    """The fewest and the most seconds within the uncertainty of all costs."""


def step_time(
    run: TrainingRun, costs: CardCosts, *, layers: Layers | None = None, host_threads: int | None = None
) -> StepTime:
    """Predict the step time of which ``zerokit rehearse --time`` reports the last step.

    Args:
        run: with a model's shape, and without "auto".
        costs: of the cluster of `run`.
        layers: of :func:`layers_of`, to use them for several runs.
        host_threads: threads of each rank for an offloaded optimizer; None: as many as cores.

    Raises:
        ZerokitError: the model is a number of parameters, or no text model, or the length is not known.
    """
    return _Step(run, settings_of(run), costs, layers or layers_of(run, costs), host_threads).play()


def layers_of(run: TrainingRun, costs: CardCosts, tokens_per_sequence: float | None = None) -> Layers:
    """The work of a run's layers on a card, whatever the stage, offload, and number of GPUs.

    Args:
        tokens_per_sequence: the mean length of a micro-batch's sequences, padding included, if they are
            shorter than `run.seq_len`.

    Raises:
        ZerokitError: see :func:`step_time`.
    """
    model = run.model
    if isinstance(model, int) or model.hidden_size is None or run.seq_len is None:
        raise ZerokitError(
            "step time needs the shape of a text model and a length of sequences",
            where="model",
            hint="Name a model, and give --seq-len",
        )
    dtype = TORCH_NAMES[settings_of(run).precision]
    batch = Batch(_micro_batch(run), tokens_per_sequence or run.seq_len, dtype, run.parallelism.sequence)
    return Layers(run, model, costs, batch)


def least_update_seconds(run: TrainingRun, costs: CardCosts, layers: Layers) -> float:
    """Seconds of the optimizer's step that nothing hides: it waits for all kernels before it."""
    settings, streams = settings_of(run), Streams(costs.beside_collective)
    sharding = _sharding(run, settings, costs, layers, None)
    if sharding.trained:
        sharding.update(streams)
    return max(streams.device, streams.host)


def forward_seconds(run: TrainingRun, costs: CardCosts, batch: Batch, *, moved_bytes: float = 0.0) -> float:
    """Seconds of a forward pass of `batch` alone; `moved_bytes`: of the KV cache, which all layers read and write."""
    assert not isinstance(run.model, int)
    step = _Step(run, settings_of(run), costs, Layers(run, run.model, costs, batch), None)
    works, streams = dict(step.layers.works), Streams(costs.beside_collective)
    moved = costs.memory_bound(round(moved_bytes / step.layers.count))
    works["layer_forward"] += Work(2 * costs.launch("kernel"), 2, memory_bound=moved)  # keys and values are stored
    step._forward(streams, works, again=True)
    return max(streams.device, streams.host)


def _micro_batch(run: TrainingRun) -> int:
    given = run.ds_config.train_micro_batch_size_per_gpu
    return run.micro_batch_size or (given if isinstance(given, int) else 1)


class _Step:
    def __init__(
        self, run: TrainingRun, settings: Settings, costs: CardCosts, layers: Layers, host_threads: int | None
    ) -> None:
        self.run, self.settings, self.costs, self.layers = run, settings, costs, layers
        self.sharding = _sharding(run, settings, costs, layers, host_threads)
        self.layer, self.outside = self.sharding.layer, self.sharding.outside
        tied, walks = layers.model.tie_word_embeddings, 3 if run.gradient_checkpointing else 2
        self.outside_times = self.sharding.gathered_outside(tied=tied, walks=walks)
        self.kept = self.sharding.kept_layers(tied=tied, walks=walks, moe=layers.model.is_moe)
        self._exchanges = {part: exchanges(costs, layers, part) for part in PARTS}
        self.prefetched = min(settings.max_live / max(sum(self.layer.gathered), 1), 1.0)
        """Share of a layer's parameters that are gathered beside the layer before."""

    def play(self) -> StepTime:
        streams = Streams(self.costs.beside_collective)
        layers = self.layers
        works = layers.works
        first_sync = 0.5 * works["outside_forward"].host
        count = self.settings.accumulation_steps
        for number in range(min(count, 3)):
            before = streams.now
            self._forward(streams, works, again=number > 0)
            self._backward(streams, works, boundary=number == min(count, 3) - 1, adds=number > 0)
            if number == 1 and count > 3:  # the middle ones are alike
                streams.repeat(before, count - 3)
        self.sharding.step(streams)
        end = max(streams.device, streams.host + first_sync) - first_sync
        return _result(streams, max(end, streams.host), self.costs, layers.batch)

    def _forward(self, streams: Streams, works: Mapping[Part, Work], *, again: bool) -> None:
        sharding = self.sharding
        (gathered, _, copies, _), (before, after, _) = sharding.gathers(self.outside, again=again), self.outside_times
        outside = works["outside_forward"]
        streams.host += outside.host * 0.5
        streams.wait()  # a flag of the attention mask is read
        self._gather(streams, gathered * before, copies * before)
        streams.until(streams.gathering, "collective")
        seconds, groups, copies, host = sharding.gathers(self.layer, again=again)
        host += self.layers.num_modules * sharding.host_seconds("fetch_forward") * (self.settings.stage == 3)
        host += sharding.host_seconds("checkpoint_forward") if self.run.gradient_checkpointing else 0.0
        for _ in range(self.layers.count):
            self._gather(streams, seconds, copies, self.prefetched)
            streams.host += host
            streams.run(works["layer_forward"], beside=seconds)
            self._exchange(streams, "layer_forward")
            if self.run.activation_offloading:
                streams.copying = max(streams.copying, streams.device) + sharding.copy("d2h", self.layers.kept_bytes)
            self._not_before(streams, works["layer_forward"].device, groups)
        self._gather(streams, gathered * after, copies * after)
        streams.until(streams.gathering, "collective")
        streams.host -= outside.host * 0.5
        streams.run(outside)
        self._exchange(streams, "outside_forward")

    def _backward(self, streams: Streams, works: Mapping[Part, Work], *, boundary: bool, adds: bool) -> None:
        sharding, stage, settings, layers = self.sharding, self.settings.stage, self.settings, self.layers
        hook = sharding.host_seconds(f"hook_{stage}")
        streams.host += len(self.outside.trained) * hook
        streams.run(works["outside_backward"])
        self._exchange(streams, "outside_backward")
        streams.until(streams.copying, "copy")
        ckpt, tied = self.run.gradient_checkpointing, layers.model.tie_word_embeddings
        again = sharding.gathers(self.layer, again=True)
        others = (0.0, 0.0, 0.0, 0.0)
        host = len(self.layer.trained) * hook
        if stage == 3:
            host += self.layers.num_modules * sharding.host_seconds("fetch_backward")
            if ckpt and self.run.adapter is not None:  # recomputation releases what is frozen: release_sub_module
                others = sharding.gathers(self.layer, again=True, alone=True)
        work = works["layer_backward"]
        if ckpt:
            host += sharding.host_seconds("checkpoint")
            host += self.layers.num_modules * sharding.host_seconds("fetch_recomputed") * (stage == 3)
            work += works["layer_forward"]
            if not settings.replaces_linear:
                work += layers.not_recomputed * -1.0
        if adds:
            work += sharding.accumulate(sum(self.layer.trained), len(self.layer.trained))
        sharding.reduce(streams, self.outside, boundary=boundary, share=0.0 if tied else 0.5)
        if ckpt or self.run.adapter is None:  # the embedding's gradient is needed; prefetched beside the layers
            back = sharding.gathers(self.outside, self.outside_times[2] / layers.count, again=True)
            others = others[0] + back[0], others[1], others[2] + back[2], others[3] + back[3]
        beside = 0.0
        for number in range(layers.count):
            times = min(max(number + 1 - self.kept, 0.0), 1.0)
            seconds, groups = times * again[0] + others[0], times * again[1] + others[1]
            copies, own = times * again[2] + others[2], times * again[3] + others[3]
            self._gather(streams, seconds, copies, self.prefetched)
            streams.host += host + own
            if self.run.activation_offloading:
                streams.exposed("copy", sharding.copy("h2d", layers.kept_bytes))
            streams.run(work, beside=beside + seconds)
            if ckpt:
                self._exchange(streams, "layer_forward")
            self._exchange(streams, "layer_backward")
            self._not_before(streams, work.device, groups)
            beside = sharding.reduce(streams, self.layer, boundary=boundary, device=work.device)
        sharding.reduce(streams, self.outside, boundary=boundary, share=1.0 if tied else 0.5)
        sharding.end_backward(streams, boundary=boundary)

    def _exchange(self, streams: Streams, part: Part) -> None:
        seconds, host = self._exchanges[part]
        if seconds:
            streams.exposed("collective", seconds, host)

    def _gather(self, streams: Streams, seconds: float, copies: float, prefetched: float = 0.0) -> None:
        if copies:
            streams.host = max(streams.host, streams.gathering) + copies
            streams.busy["copy"] += copies
        if seconds:  # the host waits for earlier gathers: max_ongoing_fetch_events
            begin = max(streams.gathering, streams.prefetching) + prefetched * seconds
            streams.host = max(streams.host, streams.gathering)
            streams.gathering = max(begin, streams.host) + (1 - prefetched) * seconds
        streams.prefetching = streams.host

    def _not_before(self, streams: Streams, device: float, groups: float) -> None:
        """The last gather of a layer comes before its last kernels."""
        if groups:
            streams.until(streams.gathering + device / (groups + 1), "collective")


def _sharding(
    run: TrainingRun, settings: Settings, costs: CardCosts, layers: Layers, host_threads: int | None
) -> Sharding:
    modules = [_module(run, settings, layers, in_layer=one) for one in (True, False)]
    *_, place = places(costs.cluster, run.parallelism)
    return Sharding(costs, settings, layers.count, (modules[0], modules[1]), place, host_threads)


def _module(run: TrainingRun, settings: Settings, layers: Layers, *, in_layer: bool) -> Module:
    sizes = layers.sizes(in_layer=in_layer)
    divided = tuple(size for size in sizes if size > settings.persistence_threshold)
    trained = sizes
    tensors = len(sizes)
    if run.adapter is not None:
        trained = layers.adapters() if in_layer else ()
        tensors += len(trained)
    return Module(trained, divided, tensors)


def _result(streams: Streams, seconds: float, costs: CardCosts, batch: Batch) -> StepTime:
    busy = streams.busy
    compute = min(sum(busy.get(kind, 0.0) for kind in _OF_KERNELS), seconds)
    parts = {"compute": compute}
    left = seconds - compute
    for name, kind in _OTHERS.items():
        parts[name] = min(busy.get(kind, 0.0), left)
        left -= parts[name]
    parts["launch"] = left
    of_costs = _range(parts, busy, costs)
    found = step_range(of_costs, seconds, parts, costs, tokens=batch.tokens, deepspeed=True)
    return StepTime(seconds=seconds, parts=parts, of_costs=list(of_costs), **found._asdict())


def _range(parts: dict[str, float], busy: dict[Class, float], costs: CardCosts) -> tuple[float, float]:
    """The range of the costs: each part as uncertain as its costs; see `rehearsal/report/step_time.py`."""
    kernels = sum(busy.get(kind, 0.0) for kind in _OF_KERNELS) or 1.0
    shares = [(costs.spread(kind), parts["compute"] * busy.get(kind, 0.0) / kernels) for kind in _OF_KERNELS]
    shares += [(costs.spread(kind), parts[name]) for name, kind in _OTHERS.items()]
    shares.append((costs.launch_spread, parts["launch"]))
    return sum(spread.low * share for spread, share in shares), sum(spread.high * share for spread, share in shares)

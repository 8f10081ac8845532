"""Memory and seconds of a candidate, by formulas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from zerokit.errors import ZerokitError
from zerokit.estimation import Question, Runs
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.ranges import step_range
from zerokit.hardware.hardware_file import read_hardware
from zerokit.memory import TrainingRun, estimate
from zerokit.memory.gpu import MOST_ACCUMULATION_STEPS
from zerokit.planning.cache import code_state
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.job import PlanJob
from zerokit.planning.recipe import ds_config_of
from zerokit.reporting.phases import phase_words
from zerokit.reporting.verdicts import Verdict, host_fit, judge, worst
from zerokit.step_time import Layers, StepTime, layers_of, least_update_seconds, step_time


@dataclass(frozen=True)
class Need:
    """Memory that a candidate needs, whatever the card."""

    device_low: int
    """One GPU, bytes, as `zerokit estimate` reports it."""
    device_high: int
    host_low: int
    """One node: tensors and processes of its ranks."""
    host_high: int
    nvme: int
    """Files of one node."""
    phase: str
    """Of the GPU's peak, in words."""
    at_peak: Mapping[str, int]
    """Bytes of torch's allocator at the peak by category."""

    def of_ranks(self, factor: int) -> Need:
        """The need of nodes with `factor` times as many GPUs: each rank has its own share of the host."""
        host_low, host_high, nvme = (factor * part for part in (self.host_low, self.host_high, self.nvme))
        return replace(self, host_low=host_low, host_high=host_high, nvme=nvme)

    def verdict(self, offer: Offer) -> Verdict:
        """Whether it fits: the GPU's memory and the host's, if that is known."""
        return worst(self.gpu_verdict(offer), self.host_verdict(offer))

    def gpu_verdict(self, offer: Offer) -> Verdict:
        """The GPU's verdict."""
        return judge(self.device_low, self.device_high, offer.gpu.memory_bytes)

    def host_verdict(self, offer: Offer) -> Verdict:
        """The host's verdict; ``fits`` if its memory is unknown."""
        known = offer.cluster.known_host_bytes
        return "fits" if known is None else judge(self.host_low, self.host_high, known)


class Evaluator:
    """Memory and seconds of candidates for a job."""

    def __init__(self, job: PlanJob) -> None:
        """Start without any result.

        Raises:
            ZerokitError: the hardware file is unusable.
        """
        self._job = job
        self._runs = Runs()
        self._bases: dict[Candidate, TrainingRun | ZerokitError] = {}
        self._needs: dict[Candidate, Need | str] = {}
        self._times: dict[tuple[Candidate, str, float | None], StepTime] = {}
        self._updates: dict[tuple[Candidate, str, float | None], float] = {}
        self._costs: dict[Cluster, CardCosts] = {}
        self._layers: dict[tuple[Any, ...], Layers] = {}
        self._tokens: dict[tuple[int, int], float] = {}
        self._figures = figures() if job.hardware is None else read_hardware(job.hardware, timed=True).figures

    def memory(self, candidate: Candidate) -> Need:
        """The memory of a candidate on any card.

        Raises:
            ZerokitError: DeepSpeed or the estimate does not support the settings.
        """
        steps = min(candidate.gradient_accumulation_steps, MOST_ACCUMULATION_STEPS)
        alike = replace(candidate, gradient_accumulation_steps=steps)
        if not candidate.hpz:
            alike = replace(alike, gpus_per_node=1)
        found = self._needs.get(alike)
        if found is None:
            try:
                found = _need(self.run(alike))
            except ZerokitError as error:
                found = str(error)
            self._needs[alike] = found
        if isinstance(found, str):
            raise ZerokitError(found)
        return found.of_ranks(candidate.gpus_per_node // alike.gpus_per_node)

    def seconds(self, candidate: Candidate, offer: Offer) -> StepTime:
        """The seconds of an optimizer step on the slowest rank.

        Raises:
            ZerokitError: the speed of the card is unknown, or settings are not supported.
        """
        key = candidate, offer.gpu.name, offer.network_gbit_s
        found = self._times.get(key)
        if found is None:
            run, costs = self._on(candidate, offer)
            found = step_time(run, costs, layers=self._layers_of(candidate, offer))
            self._times[key] = found
        return found

    def step_time(
        self,
        candidate: Candidate,
        offer: Offer,
        of_costs: tuple[float, float],
        seconds: float,
        parts: dict[str, float],
    ) -> StepTime:
        """A step that was rehearsed, with its range; see :func:`zerokit.hardware.costs.ranges.step_range`."""
        tokens = self._layers_of(candidate, offer).batch.tokens
        _, costs = self._on(candidate, offer)
        found = step_range(of_costs, seconds, parts, costs, tokens=tokens, deepspeed=True)
        return StepTime(seconds=seconds, parts=parts, of_costs=list(of_costs), **found._asdict())

    def least_seconds(self, candidate: Candidate, offer: Offer) -> float:
        """No step is faster: its kernels without a pause (roofline), then the optimizer.

        0 if the speed of the card is unknown, or settings are not supported.
        """
        known = self._times.get((candidate, offer.gpu.name, offer.network_gbit_s))
        if known is not None:
            return known.seconds
        try:
            layers = self._layers_of(candidate, offer)
            update = self._update_seconds(candidate.of_any_pass, offer, layers)
        except ZerokitError:
            return 0.0
        least = layers.least_seconds(checkpointing=candidate.gradient_checkpointing)
        return 0.999 * (candidate.gradient_accumulation_steps * least + update)

    def _update_seconds(self, base: Candidate, offer: Offer, layers: Layers) -> float:
        key = base, offer.gpu.name, offer.network_gbit_s
        if key not in self._updates:
            run, costs = self._on(base, offer)
            self._updates[key] = least_update_seconds(run, costs, layers)
        return self._updates[key]

    def _on(self, candidate: Candidate, offer: Offer) -> tuple[TrainingRun, CardCosts]:
        """The run on the offer, and what work costs there: neither prices nor the hosts' memory matter."""
        cluster = replace(offer.cluster, host_bytes=None)
        return self.run(candidate, cluster), self._costs_on(cluster)

    def run(self, candidate: Candidate, cluster: Cluster | None = None) -> TrainingRun:
        """The run that is estimated, on any card unless a cluster is given.

        Raises:
            ZerokitError: the settings exclude each other.
        """
        base = candidate.of_any_pass
        if base not in self._bases:
            try:
                self._bases[base] = self._runs.training_run(self._question(base))
            except ZerokitError as error:
                self._bases[base] = error
        found = self._bases[base]
        if isinstance(found, ZerokitError):
            raise found
        return replace(
            found,
            cluster=cluster or found.cluster,
            micro_batch_size=candidate.micro_batch_size,
            gradient_accumulation_steps=candidate.gradient_accumulation_steps,
            chunked_loss="zerokit" if candidate.chunked_loss else None,
            gradient_checkpointing=candidate.gradient_checkpointing,
            tiled_mlp=candidate.tiled_mlp,
            activation_offloading=candidate.activation_offloading,
        )

    def _question(self, candidate: Candidate) -> Question:
        job = self._job
        return Question(
            model=job.model,
            cluster=Cluster(candidate.num_gpus, candidate.gpus_per_node),
            parallelism=candidate.parallel,
            ds_config=ds_config_of(candidate, job)[0],
            micro_batch_size=candidate.micro_batch_size,
            gradient_accumulation_steps=candidate.gradient_accumulation_steps,
            seq_len=job.workload.seq_len,
            lora=job.lora,
            load_in_4bit=job.load_in_4bit,
            packing=job.workload.packing,
        )

    def _costs_on(self, cluster: Cluster) -> CardCosts:
        if cluster not in self._costs:
            self._costs[cluster] = CardCosts(cluster, self._figures)
        return self._costs[cluster]

    def _layers_of(self, candidate: Candidate, offer: Offer) -> Layers:
        sizes = (candidate.micro_batch_size, candidate.data_ranks)
        if sizes not in self._tokens:
            self._tokens[sizes] = self._job.workload.tokens_per_sequence(*sizes)
        tokens = self._tokens[sizes]
        group = candidate.parallel.group_size
        stage = 1 if group == 1 else candidate.zero_stage
        same = {name: getattr(candidate, name) for name in ("chunked_loss", "precision", "parallel", "tiled_mlp")}
        key = offer.gpu.name, tokens, stage, candidate.micro_batch_size, *same.values()
        if key not in self._layers:
            run = self.run(Candidate(group, 1, stage, candidate.micro_batch_size, 1, **same))
            self._layers[key] = layers_of(run, self._costs_on(Cluster(1, 1, offer.gpu)), tokens)
        return self._layers[key]

    @cached_property
    def cache_key(self) -> Any:
        """A JSON value that tells apart jobs in which the memory or the time of a candidate may differ."""
        job = self._job
        workload = asdict(job.workload) | {"notes": ()}
        own = None
        if job.hardware is not None:
            cards = {repr(one.gpu): sorted(one.gpu.tflops.items()) for one in job.offers}
            own = [sorted(cards.items()), json.loads(json.dumps(self._figures, default=str))]
        lora = None if job.lora is None else repr(job.lora)
        model = [repr(job.model), json.dumps(dict(job.model.config), sort_keys=True, default=str)]
        clipping = job.recipe.get("training", {}).get("max_grad_norm")
        return [code_state(), model, repr(workload), lora, job.load_in_4bit, clipping, own]


def forward_flops(job: PlanJob) -> int:
    """Multiplications and additions of a token's matmuls with weights in one forward pass.

    A token of an encoder-decoder goes through one of its two halves: half of the weights at least.
    """
    model = job.model
    kinds = model.parameters_by_kind
    idle = kinds["embedding"]
    if model.vocab_size and model.hidden_size and not model.is_encoder_decoder:
        idle = max(0, idle - model.vocab_size * model.hidden_size)  # the output matrix, tied or not
    weights = model.num_active_parameters - idle
    return 2 * weights // (2 if model.is_encoder_decoder else 1)


def peak_flops(offer: Offer) -> float:
    """Floating-point operations per second of all GPUs, by the vendor; infinite if it states none."""
    tflops = offer.gpu.tflops.get(offer.gpu.half_precision)
    return float("inf") if tflops is None else 1e12 * tflops * offer.num_gpus


def _need(run: TrainingRun) -> Need:
    answer = estimate(run)
    host = host_fit(run.cluster, answer.host.per_node_bytes, answer.nvme.per_node_bytes)
    at_peak: Counter[str] = Counter()
    for term in answer.device.terms_at_peak:
        at_peak[term.category] += term.bytes
    return Need(
        device_low=answer.device_low_bytes,
        device_high=answer.device_high_bytes,
        host_low=host.needed_low_bytes,
        host_high=host.needed_high_bytes,
        nvme=host.nvme_needed_bytes,
        phase=phase_words(answer.device.peak_phase),
        at_peak=dict(at_peak),
    )


def candidate_of(fields: dict[str, Any]) -> Candidate:
    """The candidate whose `asdict` is given."""
    return Candidate(**{**fields, "parallel": Parallelism(**fields["parallel"])})

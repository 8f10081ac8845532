"""The memory estimate of a training run: all terms, and their sums by device and phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from zerokit.memory.bnb_4bit import StoredLayout, replicated_bytes
from zerokit.memory.caveats import caveats
from zerokit.memory.generation import generation_terms
from zerokit.memory.gpu import GpuReplay, replay_fullest
from zerokit.memory.host import replay_host
from zerokit.memory.layout import Layout, layout_of
from zerokit.memory.model_states import ModelStates
from zerokit.memory.overheads import UNCHECKED_ACTIVATIONS, UNCHECKED_REST, overhead_terms
from zerokit.memory.settings import Settings, settings_of
from zerokit.memory.stage_3 import num_gpu_groups, shard, sub_groups
from zerokit.memory.tensor_parallel import divided
from zerokit.memory.term import Device, Term, total_bytes
from zerokit.memory.timeline import Held
from zerokit.memory.training_run import TrainingRun
from zerokit.reporting.phases import EARLY_PHASES, PHASES, Phase

_HOST_DEVICES: tuple[Device, ...] = ("pinned", "pageable")


@dataclass(frozen=True)
class Memory:
    """Memory of one rank on one kind of device."""

    steady_bytes: int
    """Held between two optimizer steps, from the end of the first step on."""
    peak_bytes: int
    """The maximum over the phases."""
    peak_phase: Phase
    terms_at_peak: tuple[Term, ...]
    """The terms of the peak phase and the terms that always exist, largest first."""
    by_phase: dict[Phase, int]
    """The maximum of each phase, including what always exists."""


@dataclass(frozen=True)
class HostMemory(Memory):
    """Host memory of tensors, pinned and pageable; Python and libraries are not included."""

    pinned_bytes: int
    """Maximum of one rank."""
    per_node_bytes: int
    """All ranks of a node at their peak together."""
    per_node_pinned_bytes: int


@dataclass(frozen=True)
class NvmeMemory:
    """Files of NVMe offload."""

    per_rank_bytes: int
    per_node_bytes: int


@dataclass(frozen=True)
class Estimate:
    """All terms of one rank, and their sums."""

    run: TrainingRun
    rank: int
    """The rank that is estimated."""
    terms: tuple[Term, ...]
    """All terms except `overheads`."""
    num_parameters: int
    """Φ, adapters included."""
    num_trainable_parameters: int
    model_states: ModelStates
    """Model states of one rank, as the ZeRO paper counts them."""
    activations_counted: bool
    """False for a bare number of parameters, and without a sequence length."""
    activations_checked: bool = True
    """Whether the activations of this model type were compared with rehearsals."""
    warnings: tuple[str, ...] = ()
    """Where the estimate was not compared, and what it does not count."""

    def terms_of(self, device: Device, phase: Phase | None = None) -> tuple[Term, ...]:
        """The terms of one device, or of one phase of it."""
        return tuple(term for term in self.terms if term.device == device and phase in (None, term.phase))

    @cached_property
    def device(self) -> Memory:
        """The GPU of one rank, as torch's allocator counts."""
        return self._memory(("gpu",))

    @cached_property
    def overheads(self) -> tuple[Term, ...]:
        """Guesses of memory outside torch's allocator: fragmentation, CUDA context, NCCL; `bytes` is the
        minimum."""
        return overhead_terms(self.device.peak_bytes, self.run.world_size)

    @property
    def device_low_bytes(self) -> int:
        """Peak on the GPU with all guesses at their minimum."""
        return self.peak_bounds[0] + sum(term.low for term in self.overheads)

    @property
    def device_high_bytes(self) -> int:
        """Peak on the GPU with all guesses at their maximum."""
        return self.peak_bounds[1] + sum(term.high for term in self.overheads)

    @cached_property
    def peak_bounds(self) -> tuple[int, int]:
        """Bounds of the peak in torch's allocator; equal if activations of the model type were compared.

        Otherwise activations are scaled by `UNCHECKED_ACTIVATIONS`, and another phase may be the largest.
        """
        if self.activations_checked:
            return self.device.peak_bytes, self.device.peak_bytes
        phases = [self._held(list(self.terms_of("gpu")), phase) for phase in self.device.by_phase]
        low, high = (
            max(
                round(sum(term.bytes * (factor if term.category == "activations" else rest) for term in held))
                for held in phases
            )
            for factor, rest in zip(UNCHECKED_ACTIVATIONS, UNCHECKED_REST, strict=True)
        )
        return low, high

    @cached_property
    def host(self) -> HostMemory:
        both, pinned = self._memory(_HOST_DEVICES), self._memory(("pinned",))
        local = self.run.cluster.local_ranks
        return HostMemory(
            **vars(both),
            pinned_bytes=pinned.peak_bytes,
            per_node_bytes=local * both.peak_bytes,
            per_node_pinned_bytes=local * pinned.peak_bytes,
        )

    @cached_property
    def nvme(self) -> NvmeMemory:
        number = total_bytes(self.terms_of("nvme"))
        return NvmeMemory(number, self.run.cluster.local_ranks * number)

    def _memory(self, devices: tuple[Device, ...]) -> Memory:
        terms = [term for term in self.terms if term.device in devices]
        by_phase: dict[Phase, int] = {}
        for phase in PHASES:
            held = self._held(terms, phase)
            if held:
                by_phase[phase] = total_bytes(held)
        peak: Phase = max(by_phase, key=lambda phase: by_phase[phase]) if by_phase else "always"
        at_peak = sorted(self._held(terms, peak), key=lambda term: -term.bytes)
        return Memory(
            steady_bytes=by_phase.get("always", 0),
            peak_bytes=by_phase.get(peak, 0),
            peak_phase=peak,
            terms_at_peak=tuple(at_peak),
            by_phase=by_phase,
        )

    @staticmethod
    def _held(terms: list[Term], phase: Phase) -> list[Term]:
        """The terms at the largest moment of a phase; none if the phase has no terms."""
        own = [term for term in terms if term.phase == phase]
        if not own or phase in ("always", *EARLY_PHASES):
            return own
        return own + [term for term in terms if term.phase == "always"]


def estimate(run: TrainingRun) -> Estimate:
    """Estimate the memory of a run in DeepSpeed 0.19.8.

    Raises:
        ZerokitError: DeepSpeed or the estimate does not support a setting.
    """
    settings = settings_of(run)
    whole = layout_of(run)
    zero_init = run.zero_stage == 3 and not _builds_full_copy(run)
    layout = divided(whole, run.parallelism.tensor, tied=run.divides_tied_head, zero_init=zero_init)
    found = replay_fullest(run, layout, settings)
    full_copy = _builds_full_copy(run) and not run.load_in_4bit
    host = replay_host(
        layout.unpacked,
        settings,
        rank=found.rank,
        builds_full_copy=full_copy,
        untied=_untied(run),
        one_by_one=max(one.elements for one in layout.parameters) if run.load_in_4bit else 0,
        checkpoints=_offloaded_checkpoints(run, found),
        made_first=full_copy and settings.optimizer.at_construction and run.optimizer is not None,
    )
    terms = [*_terms(found.steady, found.fullest), *_terms(host.steady, host.fullest), *_terms(host.nvme, {})]
    if run.generation is not None and not isinstance(run.model, int):
        terms += generation_terms(run.model, layout, settings, run.generation)
    return Estimate(
        run=run,
        rank=found.rank * run.parallelism.tensor + settings.tensor_rank,
        terms=tuple(_in_letters(terms, layout)),
        num_parameters=whole.num_parameters,
        num_trainable_parameters=whole.num_trainable,
        model_states=_model_states(run, layout, settings),
        activations_counted=found.model_calls is not None,
        activations_checked=found.model_calls is None or found.model_calls.known,
        warnings=tuple(caveats(run, whole, settings, found)),
    )


def _terms(steady: Held, fullest: dict[Phase, Held]) -> Iterator[Term]:
    """The terms that always exist, and those that each phase adds."""
    for kind, amounts in steady.items():
        yield kind.term("always", amounts)
    for phase, held in fullest.items():
        for kind, amounts in held.items():
            beside = {} if phase in EARLY_PHASES else steady.get(kind, {})
            own = {unit: count - beside.get(unit, 0) for unit, count in amounts.items()}
            own = {unit: count for unit, count in own.items() if count > 0}
            if own:
                yield kind.term(phase, own)


def _in_letters(terms: list[Term], layout: Layout) -> Iterator[Term]:
    """Write Φ for Φₜ if everything is trained, and leave packed parameters out of DeepSpeed's Φ."""
    for term in terms:
        if layout.packed and term.count == "Φ":
            yield replace(term, count="(Φ - Φ₄)")
            continue
        yield replace(term, count=term.count.replace("Φₜ", "Φ")) if not layout.num_frozen else term


def _model_states(run: TrainingRun, layout: Layout, settings: Settings) -> ModelStates:
    states = settings.model_states(layout.unpacked.num_parameters, layout.num_trainable)
    if settings.gpu_share:
        groups = sub_groups(layout, settings)
        on_gpu = sum(map(sum, groups[: num_gpu_groups(groups, settings)])) / max(sum(map(sum, groups)), 1)
        states = replace(states, optimizer_states=replace(states.optimizer_states, gpu_share=on_gpu))
    if not layout.packed:
        return states
    packed = replicated_bytes(layout, settings.stage, double_quant=run.double_quant)
    if settings.stage == 3:  # the rest is divided
        packed += sum(shard(one, settings.zero_ranks) for one in StoredLayout(layout, 1).of(layout.packed))
    return replace(states, parameters=replace(states.parameters, letter="(Φ - Φ₄)", packed_bytes=packed))


def _builds_full_copy(run: TrainingRun) -> bool:
    if run.loads_full_copy_per_rank is not None:
        return run.loads_full_copy_per_rank
    return run.zero_stage < 3


def _offloaded_checkpoints(run: TrainingRun, found: GpuReplay) -> tuple[int, int]:
    """Layers whose input waits on the host, and the bytes of one."""
    if not (run.activation_offloading and run.gradient_checkpointing) or found.model_calls is None:
        return 0, 0
    assert found.sizes is not None
    layers = sum(block.is_layer for block in found.model_calls.blocks)
    return layers, found.sizes.e * found.sizes.tokens * found.sizes.h


def _untied(run: TrainingRun) -> int:
    """Elements of the output matrix that a model with tied embeddings creates before tying it."""
    model = run.model
    if isinstance(model, int) or not model.tie_word_embeddings:
        return 0
    return (model.vocab_size or 0) * (model.hidden_size or 0)

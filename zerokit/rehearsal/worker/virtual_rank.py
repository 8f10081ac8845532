"""One rank of a cluster of virtual GPUs: what a rehearsal has seen of it, as a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from zerokit import patches
from zerokit.rehearsal.call_sites import CallSites
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.errors import met_gaps
from zerokit.rehearsal.job import Overrides
from zerokit.rehearsal.native.allocator_settings import AllocatorSettings
from zerokit.rehearsal.native.backend import Backend, Model, Note, NoteKind
from zerokit.rehearsal.ranks.call_order import FAILED
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.recording import (
    BLOCK,
    CATEGORY_CODES,
    EVENT,
    SPAN,
    Collective,
    NvmeBytes,
    RankFacts,
    RankTimes,
    Recording,
)
from zerokit.rehearsal.report.report import MadeUpResult
from zerokit.rehearsal.stand_ins.nvme_ledger import nvme_ledger
from zerokit.rehearsal.timing.operators import is_tf32_on
from zerokit.rehearsal.timing.rank_time import RankTime
from zerokit.rehearsal.watching.accumulation import Accumulation
from zerokit.rehearsal.watching.batches import BatchWatcher
from zerokit.rehearsal.watching.evaluation import EvaluationWatcher
from zerokit.rehearsal.watching.hub_files import HubFiles
from zerokit.rehearsal.watching.labels import Labels
from zerokit.rehearsal.watching.module_order import ModuleOrder
from zerokit.rehearsal.watching.overrides import Overriding
from zerokit.rehearsal.watching.phases import Phases, Recomputing
from zerokit.rehearsal.watching.steps import Steps, Traffic
from zerokit.rehearsal.watching.suppressed_writes import SuppressedWrites
from zerokit.rehearsal.watching.watcher import Events, Watcher
from zerokit.rehearsal.watching.zero_init import ZeroInit
from zerokit.reporting.categories import Category
from zerokit.reporting.phases import RUN_PHASES, RunPhase
from zerokit.tables import table_of

_TABLE = table_of(__file__)
_ALLOCATOR_FIGURES: Mapping[str, tuple[str, str]] = _TABLE["allocator_figures"]

_LARGER_THAN_A_LOSS = 1024
"""Bytes of what scripts reduce to print it."""

_CATEGORY_BY_LINE: Sequence[tuple[str, Category]] = _TABLE["category_by_line"]
"""The category of a block without a label, by a part of the line that made it; the first match counts."""
_CATEGORY_BY_PHASE: Mapping[RunPhase, Category] = _TABLE["category_by_phase"]
"""The category of a block whose line does not give one, by the phase in which it was made."""


class VirtualRank:
    """The rank that this process plays, made by :func:`zerokit.rehearsal.virtual_cluster`."""

    def __init__(
        self,
        backend: Backend,
        num_gpus: int,
        gpus_per_node: int,
        rank: int,
        *,
        steps: int,
        scan_seconds: float,
        overrides: Overrides,
        exchange_folder: Path | None,
        output_dir: Path,
        time: RankTime | None = None,
    ) -> None:
        self.started = perf_counter()
        self.time, self.backend = time, backend
        self.num_gpus, self.gpus_per_node, self.rank = num_gpus, gpus_per_node, rank
        self.call_sites = CallSites()
        self.traffic = Traffic(backend)
        self.exchange = Exchange(exchange_folder, rank, num_gpus)
        self.suppressed = SuppressedWrites(backend, self.exchange)
        self.events = Events()
        self.labels = Labels(backend, self.events)
        self.overriding = Overriding(overrides, output_dir)
        self.accumulation = Accumulation()
        module_order = ModuleOrder()
        self.exchange.modules = module_order.to_json
        recomputing = Recomputing(backend)
        self.steps = Steps(backend, self.events, self.traffic, recomputing, time=time, last=steps)
        self.batches = BatchWatcher(
            self.labels,
            self.exchange,
            steps,
            scan_seconds,
            self.steps.settled,
            factor=overrides.get("micro_batch_factor", 1),
            is_resized=lambda: self.overriding.sizes_arguments,
        )
        self.evaluation = EvaluationWatcher(backend, self.batches)
        # A step ends once it is over and out of its phase.
        self.zero_init = ZeroInit()
        self.events.add(HubFiles(), self.zero_init, self.suppressed, self.labels)
        self.events.add(Phases(backend, self.events), recomputing)
        self.events.add(self.batches, self.evaluation, self.traffic, self.steps, self.overriding)
        self.events.add(self.accumulation, module_order)
        if time is not None:
            self.events.add(time)
        self.events.start()

    def close(self) -> None:
        """Let the other ranks go on without this one."""
        self.exchange.close(FAILED)

    def end(self, ending: str) -> None:
        """Publish that this rank has come to its end, and how, as of :meth:`Exchange.close`."""
        self.events.end(Watcher.on_exit)
        self.exchange.close(ending, steps=self.steps.completed)

    def recording(self, versions: Mapping[str, str] | None = None, hint: str | None = None) -> Recording:
        """Return what was recorded up to now; `versions` and `hint` as of :class:`RankFacts`."""
        backend, steps = self.backend, self.steps
        steps.mark_pending()  # the run may go on
        events = backend.events(EVENT)
        blocks = backend.blocks(BLOCK)
        # A step may be marked after later events were recorded.
        ends = [mark.event for mark in steps.marks]
        events["step"] = np.searchsorted(ends, np.arange(len(events)), side="right")
        sites = self.call_sites.lines
        ops = backend.operator_names()
        _categorize(blocks, sites, ops, self.labels.of_buckets)
        notes = backend.notes()
        nvme = None
        if (ledger := nvme_ledger()).written_bytes:
            nvme = NvmeBytes(held=ledger.total_bytes, written=ledger.written_bytes, read=ledger.read_bytes)
        return Recording(
            events=events,
            blocks=blocks,
            sites=tuple(sites),
            ops=tuple(ops),
            names=tuple(self.labels.names),
            step_marks=tuple(steps.marks),
            collectives=tuple(self.traffic.calls),
            spans=backend.spans(SPAN),
            acts=np.zeros(0, np.uint8) if self.time is None else self.time.acts(),
            flops=tuple(round(flops) for flops in steps.flops),
            allocator={
                "ordinary": _allocator_figures(backend, Model.ORDINARY),
                "expandable": _allocator_figures(backend, Model.EXPANDABLE),
            },
            warnings=(*_of_notes(notes, sites, self), *_warnings(self)),
            facts=RankFacts(
                rank=self.rank,
                versions=dict(versions or {}),
                hint=hint,
                elapsed_seconds=perf_counter() - self.started,
                ds_config=self.overriding.ds_config,
                refused_ds_config=self.overriding.refused,
                data_parallel_ranks=self.overriding.data_parallel_ranks,
                requested_steps=self.batches.steps or None,
                stopped_after_steps=steps.completed if steps.stopped else None,
                idle_micro_steps=_idle_micro_steps(self),
                expandable_segments=AllocatorSettings.of_environment().expandable_segments,
                reserved_is_lower_bound=self.time is None and backend.awaited_blocks > 0,
                suppressed=self.suppressed.lines(),
                mistakes=[*self.accumulation.mistakes, *([_OWN_STEPS] if steps.has_only_backward() else ())],
                fp32_share=backend.fp32_share_of("backward"),
                chooses_fp32=self.overriding.turns_16_bits_off or is_tf32_on(),
                whole_model_bytes=self.zero_init.whole_model_bytes,
                made_up=[
                    MadeUpResult(what=note.what, site=_site(note, sites), count=note.times)
                    for note in notes
                    if note.kind == NoteKind.MADE_UP
                ],
                gaps=list(map(str, met_gaps())),
                nvme=nvme,
                batches=self.batches.facts(),
                evaluation=self.batches.evaluation_facts(),
                times=None if self.time is None else _times(self, self.time),
            ),
        )


def _idle_micro_steps(rank: VirtualRank) -> tuple[int, int] | None:
    """How far the first engine with an optimizer came, of what a step takes, if no step was made."""
    # Without an optimizer, ZeRO-3 and bf16 have something in its place that makes no steps.
    trains = (engine for engine in rank.labels.engines if getattr(engine, "basic_optimizer", None) is not None)
    engine = None if rank.steps.completed else next(trains, None)
    if engine is None:
        return None
    return engine.micro_steps, engine.gradient_accumulation_steps()


def _times(rank: VirtualRank, time: RankTime) -> RankTimes:
    """When steps ended, and what they did."""
    engine = next((one for one in rank.labels.engines if one.optimizer is not None), None)
    ranks = 0 if engine is None else engine.dp_world_size
    tokens = rank.batches.tokens_of_steps()
    return RankTimes(
        step_ends=time.step_ends(),  # provisional: see RankTimes
        step_end_events=time.step_end_events,
        meetings=time.meetings.all,
        meetings_by_network=time.meetings_by_network,
        model_flops=rank.steps.model_flops,
        tokens_per_step=[None if one is None or not ranks else one * ranks for one in tokens],
        reading=rank.batches.reading_facts(),
        host_threads=time.host_threads,
    )


def _warnings(rank: VirtualRank) -> list[str]:
    """How the run differs from a real one."""
    warnings = []
    if rank.backend.random_elements_skipped and rank.batches.are_uneven():
        warnings.append(
            "batches are of several sizes, and a shuffle by torch's default generator puts others together "
            "than in a real run: the random numbers that fill weights on the host were not drawn"
        )
    if unknown := rank.exchange.unknown_values:
        warnings.append(
            f"{unknown} values came from a rank that was not rehearsed with this one, which went on with its own"
        )
    warnings += rank_context().warnings()
    warnings += [f"{line}: the rehearsal went on without it" for line in patches.missing()]
    if rank.time is not None:
        warnings += [f"{name} took no time: {why}" for name, why in rank.time.without_cost.items()]
        if rank.time.clock.is_blocking:
            who = "by the environment, the script or the Trainer's full_determinism"
            warnings.append(f"CUDA_LAUNCH_BLOCKING is set ({who}): the host waits for each kernel, which is slower")
    if rank.evaluation.problem is not None:
        warnings.append(f"the evaluation was rehearsed as far as it failed: {rank.evaluation.problem}")
    warnings += rank.evaluation.not_rehearsed
    if not rank.steps.completed:
        warnings += [] if rank.steps.has_only_backward() else [_NO_STEP]
    elif not rank.labels.engines:
        alone = "" if train_together(rank.traffic.calls) else ", on each GPU for itself"
        warnings.append(f"no DeepSpeed engine was made: the steps are of plain torch optimizers{alone}")
    return warnings


_NO_STEP = (
    "no optimizer step was seen: the figures are of what ran before the script ended, and a training run needs more"
)
_OWN_STEPS = (
    "no optimizer step was seen after a backward pass: zerokit sees the steps of DeepSpeed and of torch's optimizers, "
    "not updates that a script makes itself"
)


def train_together(calls: Sequence[Collective]) -> bool:
    """Whether ranks without an engine reduce gradients or activations, and not only figures to print."""
    return any(
        "reduce" in call.name
        and call.group_size > 1
        and (RUN_PHASES[call.phase] == "backward" or call.bytes >= _LARGER_THAN_A_LOSS or call.is_of_rows)
        for call in calls
        if RUN_PHASES[call.phase] != "init"
    )


def _of_notes(notes: list[Note], sites: list[str], rank: VirtualRank) -> list[str]:
    """Warnings about gaps that the library went on from."""
    own = f"cuda:{rank.rank % rank.gpus_per_node}"
    warnings = []
    for note in notes:
        if note.kind == NoteKind.GAP:
            warnings.append(
                f"{_site(note, sites)}: the rehearsal cannot stand in for {note.what}, and the script went "
                "on without it: what the GPU would do instead is not in the figures"
            )
        elif note.kind == NoteKind.OTHER_DEVICE:
            warnings.append(
                f"{_site(note, sites)}: rank {rank.rank} uses {note.what}, the GPU of another rank, "
                f"{note.times:,} times; it is counted on its own, {own}, but on the cluster it comes on top "
                "of what that rank holds. Use the device of LOCAL_RANK"
            )
    settings = AllocatorSettings.of_environment()
    warnings += [f"the model of PyTorch's allocator does not follow {name}" for name in settings.passed_over]
    return warnings


def _site(note: Note, sites: list[str]) -> str:
    return sites[note.site] if note.site >= 0 else "an unknown line"


def _allocator_figures(backend: Backend, model: Model) -> dict[str, int]:
    stats, peaks = backend.stats(model), backend.whole_run_peaks(model)
    figures = {
        name: peaks[stat] if field == "peak" else stats[f"{stat}.all.{field}"]
        for name, (stat, field) in _ALLOCATOR_FIGURES.items()
    }
    return {**figures, "num_alloc_retries": stats["num_alloc_retries"], "num_ooms": stats["num_ooms"]}


def _categorize(blocks: np.ndarray[Any, Any], sites: list[str], ops: list[str], buckets: Sequence[range]) -> None:
    """Fill in the category of every block that has none, from the line and the phase it was born in."""
    code = CATEGORY_CODES.index
    for made in buckets:
        own = blocks["category"][made.start : made.stop]
        own[own == code("other")] = code("buffers")
    unsorted = blocks["category"] == code("other")
    by_site = np.zeros(len(sites) + 1, dtype=np.uint8)  # the last place answers for -1
    for index, site in enumerate(sites):
        found = (category for part, category in _CATEGORY_BY_LINE if part in site)
        by_site[index] = code(next(found, "other"))
    blocks["category"] = np.where(unsorted, by_site[blocks["site"]], blocks["category"])
    unsorted = blocks["category"] == code("other")
    by_phase = np.array([code(_CATEGORY_BY_PHASE[phase]) for phase in RUN_PHASES], dtype=np.uint8)
    blocks["category"] = np.where(unsorted, by_phase[blocks["phase"]], blocks["category"])
    workspaces = [index for index, op in enumerate(ops) if op == "cuBLAS workspace"]
    blocks["category"][np.isin(blocks["op"], workspaces)] = code("buffers")

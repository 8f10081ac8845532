"""From a recording to a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from zerokit.hardware import non_torch_memory
from zerokit.hardware.cluster import Cluster
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.recording import (
    CATEGORY_CODES,
    HOST_SPACES,
    Array,
    Collective,
    RankFacts,
    Recording,
    Space,
    peak_event,
)
from zerokit.rehearsal.report.judgements import precision_line, trains_in_fp32
from zerokit.rehearsal.report.last_step import memory_curve
from zerokit.rehearsal.report.report import (
    AllocatorMemory,
    Communication,
    DeviceMemory,
    Fit,
    HostMemory,
    NvmeMemory,
    Overhead,
    RehearsalReport,
    RunFacts,
    ScriptFacts,
    SiteMemory,
    StepMemory,
)
from zerokit.rehearsal.report.step_time import doubts, time_of
from zerokit.reporting.phases import RUN_PHASES
from zerokit.reporting.verdicts import judge
from zerokit.units import GIB, MIB, quantity

_CONTEXT_SOURCE = "measured, by card and driver (ml-engineering, training/performance)"
_RING = 1
_RING_AND_TREE = 4
"""A rank receives from one neighbour in a ring and from up to three in a tree (NCCL_MAX_TREE_ARITY)."""


def overheads(cluster: Cluster, group_sizes: set[int]) -> list[Overhead]:
    """The lines to add to what the allocator reserves on each GPU.

    Each size above 1 of the process groups that collectives were called on, `group_sizes`, counts as one
    communicator of NCCL, which holds buffers of its own.
    """
    low, high = non_torch_memory.CUDA_CONTEXT
    context = Overhead(name="CUDA context", low_bytes=low, high_bytes=high, source=_CONTEXT_SOURCE)
    return [context, _communication_overhead(cluster, group_sizes)]


def _communication_overhead(cluster: Cluster, group_sizes: set[int]) -> Overhead:
    known = non_torch_memory
    communicators = max(1, len({size for size in group_sizes if size > 1}))
    if cluster.num_gpus == 1:
        low, high = 0, known.NCCL_ONE_GPU_HIGH
        source = "a single GPU has no connections; NCCL's kernels may be loaded"
    else:
        neighbours, where = _RING_AND_TREE, "across nodes"
        if cluster.num_nodes == 1:
            neighbours, where = _RING, "within one node"
        low = known.NCCL_FEW_CHANNELS * _RING * known.NCCL_CONNECTION * communicators
        each_further = known.NCCL_MANY_CHANNELS * neighbours * known.NCCL_CONNECTION
        first = max(known.NCCL_FIRST_COMMUNICATOR_HIGH, each_further)
        high = first + each_further * (communicators - 1)
        source = (
            f"{quantity(communicators, 'communicator')} {where}: low, {known.NCCL_FEW_CHANNELS} channels of "
            f"{known.NCCL_CONNECTION / MIB:.1f} MiB (NCCL src/init.cc); high, 1.45 GiB measured at the first "
            "barrier (ml-engineering)"
        )
        if communicators > 1:
            source += f", and {each_further / GIB:.2f} GiB for each further communicator"
    return Overhead(name="communication (NCCL)", low_bytes=low, high_bytes=high, source=source)


LARGEST_BLOCKS = 20
"""Blocks, and lines of code, that are listed."""
RANKS_DIFFER = 0.001
"""Of a figure, and more than a MiB; padding to the number of ranks makes less than this."""
_INIT = RUN_PHASES.index("init")
Segments = Literal["ordinary", "expandable"]
_SEGMENTS: tuple[Segments, ...] = ("ordinary", "expandable")


def analyse(recording: Recording, job: RehearsalJob) -> RehearsalReport:
    """The report of one rank.

    The peak is the largest running sum of allocated bytes, as of ``torch.cuda.max_memory_allocated``.
    """
    facts = recording.facts
    device = _device(recording)
    sizes = {call.group_size for call in recording.collectives}
    per_step = _per_step(recording)
    local_ranks = job.cluster.local_ranks
    costs = job.costs
    time = None if costs is None else time_of(recording, costs, job.rank)
    in_fp32 = trains_in_fp32(facts, job)
    mistakes = [*facts.mistakes, *([precision_line(facts)] if in_fp32 and not facts.chooses_fp32 else ())]
    return RehearsalReport(
        world_size=job.num_gpus,
        gpus_per_node=local_ranks,
        rank=job.rank,
        steps=recording.completed_steps,
        elapsed_seconds=facts.elapsed_seconds,
        device=device,
        host=_host(recording, local_ranks),
        nvme=_nvme(recording, local_ranks),
        fit=_fit(device, job, sizes, _batch_of_peak(device, facts, per_step)),
        batches=facts.batches,
        evaluation=facts.evaluation,
        per_step=per_step,
        communication=_communication(recording),
        flops_per_step=_of_last_step(recording, recording.flops),
        model_flops_per_step=_of_last_step(recording, facts.times.model_flops if facts.times else ()),
        ranks_rehearsed=[job.rank],
        mistakes=mistakes,
        warnings=[
            *mistakes,
            *recording.warnings,
            *([precision_line(facts)] if in_fp32 and facts.chooses_fp32 else ()),
            *(costs.assumptions if costs is not None else ()),
            *(doubts(time, costs) if time is not None and costs is not None else ()),
            *facts.gaps,
        ],
        made_up=facts.made_up,
        suppressed=facts.suppressed,
        run=RunFacts(
            script=job.script,
            arguments=job.arguments,
            gpu=job.device.name,
            **facts.model_dump(include=set(ScriptFacts.model_fields)),
        ),
        time=time,
    )


def _device(recording: Recording) -> DeviceMemory:
    running = recording.running_bytes(Space.DEVICE)
    peak = peak_event(running)
    alive = recording.alive(peak, Space.DEVICE)
    allocator = {kind: _allocator(recording.allocator[kind]) for kind in _SEGMENTS if kind in recording.allocator}
    segments: Segments = "expandable" if recording.facts.expandable_segments else "ordinary"
    peak_bytes = max(0, int(running[peak])) if len(running) else 0
    return DeviceMemory(
        peak_bytes=peak_bytes,
        steady_bytes=_at_steady(recording, running),
        reserved_peak_bytes=allocator[segments].reserved_peak_bytes if segments in allocator else peak_bytes,
        peak_phase=RUN_PHASES[recording.events["phase"][peak]] if len(running) else RUN_PHASES[_INIT],
        peak_step=int(recording.events["step"][peak]) if len(running) else 0,
        by_phase=_by_phase(recording, running),
        at_peak=_by_category(recording, alive),
        sites_at_peak=_by_site(recording, alive),
        largest_blocks_at_peak=[
            recording.block(event["block"], int(event["bytes"]))
            for event in alive[np.argsort(-alive["bytes"], kind="stable")[:LARGEST_BLOCKS]]
        ],
        allocator=allocator,
        segments=segments,
        reserved_is_lower_bound=recording.facts.reserved_is_lower_bound,
        curve=memory_curve(recording),
    )


def _allocator(figures: Any) -> AllocatorMemory:
    known = {name: int(figures[name]) for name in AllocatorMemory.model_fields if name in figures}
    known["fragmentation_bytes"] = known["reserved_peak_bytes"] - known["allocated_peak_bytes"]
    return AllocatorMemory(**known)


def _at_steady(recording: Recording, running: Array) -> int:
    if not len(running):
        return 0
    mark = recording.last_mark
    return int(running[-1]) if mark is None else _level(running, mark.event)


def _level(running: Array, events: int) -> int:
    """Bytes held when so many events had been recorded."""
    return int(running[min(events, len(running)) - 1]) if events and len(running) else 0


def _by_phase(recording: Recording, running: Array) -> dict[str, int]:
    # What is held as a phase begins counts too: it may only release.
    before = np.concatenate(([0], running[:-1])) if len(running) else running
    highest = np.maximum(running, before)
    phases = recording.events["phase"]
    return {name: int(highest[phases == code].max()) for code, name in enumerate(RUN_PHASES) if (phases == code).any()}


def _by_category(recording: Recording, alive: Array) -> dict[str, int]:
    categories = recording.blocks["category"][alive["block"]]
    return {name: int(alive["bytes"][categories == code].sum()) for code, name in enumerate(CATEGORY_CODES)}


def _by_site(recording: Recording, alive: Array) -> list[SiteMemory]:
    sites = recording.blocks["site"][alive["block"]]
    places, inverse, counts = np.unique(sites, return_inverse=True, return_counts=True)
    sums = np.zeros(len(places), dtype=np.int64)
    np.add.at(sums, inverse, alive["bytes"])
    order = np.argsort(-sums, kind="stable")[:LARGEST_BLOCKS]
    return [
        SiteMemory(
            site=recording.sites[places[index]] if places[index] >= 0 else "unknown",
            bytes=int(sums[index]),
            blocks=int(counts[index]),
        )
        for index in order
    ]


def _host(recording: Recording, ranks_per_node: int) -> HostMemory:
    all_host = recording.running_bytes(*HOST_SPACES)
    pinned = recording.running_bytes(Space.PINNED_HOST)
    peak = int(all_host.max(initial=0))
    most_pinned = int(pinned.max(initial=0))
    at_peak = peak_event(all_host)
    steady = _at_steady(recording, all_host)
    return HostMemory(
        peak_bytes=peak,
        steady_bytes=steady,
        pinned_bytes=most_pinned,
        pinned_steady_bytes=_at_steady(recording, pinned),
        at_peak=_by_category(recording, recording.alive(at_peak, *HOST_SPACES)),
        pinned_at_peak=_by_category(recording, recording.alive(at_peak, Space.PINNED_HOST)),
        per_node_peak_bytes=peak * ranks_per_node,
        per_node_steady_bytes=steady * ranks_per_node,
        per_node_pinned_bytes=most_pinned * ranks_per_node,
    )


def _nvme(recording: Recording, ranks_per_node: int) -> NvmeMemory | None:
    nvme = recording.facts.nvme
    if nvme is None:
        return None
    held, written, read = nvme.held, nvme.written, nvme.read
    per_node = held * ranks_per_node
    return NvmeMemory(per_rank_bytes=held, per_node_bytes=per_node, written_bytes=written, read_bytes=read)


def _of_last_step(recording: Recording, of_steps: Sequence[float]) -> int:
    """What the last completed step has, of numbers of each step; 0 where it has none."""
    mark = recording.last_mark
    return round(of_steps[mark.step - 1]) if mark and mark.step <= len(of_steps) else 0


def _batch_of_peak(device: DeviceMemory, facts: RankFacts, steps: list[StepMemory]) -> str | None:
    """The batch found by the scan that makes the peak, if one does."""
    if facts.evaluation is not None and device.peak_phase == "evaluation":
        return f"the evaluation batch of {facts.evaluation.largest}"
    step = device.peak_step + 1
    before = max((one.peak_bytes for one in steps if one.step < step), default=0)
    for batch in facts.batches.rehearsed if facts.batches is not None else ():
        is_of_step = batch.first_step <= step <= batch.last_step
        if is_of_step and device.peak_bytes > before * (1 + RANKS_DIFFER):
            return str(batch)
    return None


def _fit(device: DeviceMemory, job: RehearsalJob, group_sizes: set[int], batch: str | None) -> Fit:
    lines = overheads(job.cluster, group_sizes)
    low = device.peak_bytes + sum(line.low_bytes for line in lines)
    high = device.reserved_peak_bytes + sum(line.high_bytes for line in lines)
    return Fit(
        gpu_memory_bytes=job.device.total_bytes,
        overheads=lines,
        low_bytes=low,
        high_bytes=high,
        verdict=judge(low, high, job.device.total_bytes),
        batch=batch,
    )


def _per_step(recording: Recording) -> list[StepMemory]:
    """Each step from the mark before it; the first from the end of init."""
    running = recording.running_bytes(Space.DEVICE)
    phases = recording.events["phase"]
    calls = [call for call in recording.collectives if call.phase != _INIT]
    steps = []
    begin = 0
    for number, mark in enumerate(recording.step_marks):
        chosen = np.arange(begin, min(mark.event, len(running)))
        if number == 0:
            chosen = chosen[phases[chosen] != _INIT]
        peak = int(chosen[running[chosen].argmax()]) if len(chosen) else None
        steady = _level(running, mark.event)
        steps.append(
            StepMemory(
                step=mark.step,
                peak_bytes=steady if peak is None else int(running[peak]),
                peak_phase=RUN_PHASES[phases[peak]] if peak is not None else "step",
                steady_bytes=steady,
                flops=recording.flops[number] if number < len(recording.flops) else 0,
                communication_bytes=sum(call.bytes for call in calls if call.step == mark.step - 1),
            )
        )
        begin = mark.event
    return steps


def _communication(recording: Recording) -> list[Communication]:
    """Calls of the last completed step, and those of init; all calls if no step was completed."""
    last = (recording.last_mark.step if recording.last_mark else 0) - 1
    counted: dict[tuple[int, str, int], list[Collective]] = defaultdict(list)
    for call in recording.collectives:
        if last < 0 or call.phase == _INIT or call.step == last:
            counted[call.phase, call.name, call.group_size].append(call)
    return [
        Communication(
            collective=name,
            phase=RUN_PHASES[phase],
            group_size=group_size,
            count=len(calls),
            bytes=sum(call.bytes for call in calls),
        )
        for (phase, name, group_size), calls in sorted(counted.items())
    ]

"""Recordings made by hand: a small training run whose every figure can be worked out on paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import VirtualDevice, virtual_device
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.recording import (
    BLOCK,
    CATEGORY_CODES,
    DTYPES,
    EVENT,
    SPAN,
    RankFacts,
    RankTimes,
    Recording,
    Space,
)
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import Batches, BatchSize, MadeUpResult, RehearsalReport
from zerokit.reporting.phases import RUN_PHASES

MIB = 2**20
BFLOAT16 = DTYPES.index("bfloat16")
FLOAT32 = DTYPES.index("float32")


def device_with(memory_bytes: int) -> VirtualDevice:
    """The usual card with so much memory."""
    return virtual_device(find_gpu("H100").with_memory(memory_bytes))


def job(**changes: Any) -> RehearsalJob:
    """A rehearsal of train.py on 16 GPUs."""
    usual = {
        "script": "train.py",
        "num_gpus": 16,
        "gpus_per_node": 8,
        "rank": 0,
        "steps": 2,
        "device": device_with(80 * 2**30),
        "cwd": ".",
        "recording_file": "rank-0.npz",
    }
    return RehearsalJob(**{**usual, **changes})


@dataclass
class Recorder:
    """Writes down allocations and releases in order, as the rehearsal does."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    blocks: list[tuple[Any, ...]] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    collectives: list[tuple[Any, ...]] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    phase: str = "init"
    step: int = 0
    next_address: int = 0x7F0000000000
    free: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def allocate(
        self,
        size: int,
        category: str = "other",
        *,
        space: Space = Space.DEVICE,
        site: str | None = None,
        op: str | None = None,
        name: str | None = None,
        shape: tuple[int, ...] = (),
        dtype: int = -1,
        stream: int = 0,
    ) -> int:
        """Allocate, at an address that was freed if one of that size and stream was; gives the block."""
        block = len(self.blocks)
        places = self.free.get((size, stream))
        if places:
            address = places.pop()
        else:
            address, self.next_address = self.next_address, self.next_address + size
        self.blocks.append(
            (
                size,
                _place(self.sites, site),
                _place(self.ops, op),
                _place(self.names, name),
                CATEGORY_CODES.index(category),
                dtype,
                len(shape),
                RUN_PHASES.index(self.phase),
                (*shape, *[0] * (6 - len(shape))),
            )
        )
        self._write(block, size, address, stream, space)
        return block

    def release(self, *blocks: int) -> None:
        """Release blocks."""
        for block in blocks:
            birth = next(event for event in self.events if event[1] == block)
            _, _, size, address, _, stream, space, _ = birth
            self.free.setdefault((size, stream), []).append(address)
            self._write(block, -size, address, stream, space)

    def communicate(self, name: str, size: int, group_size: int = 16) -> None:
        """Call a collective."""
        self.collectives.append((name, RUN_PHASES.index(self.phase), self.step, size, group_size, len(self.events)))

    def end_step(self, flops: int) -> None:
        """End an optimizer step."""
        self.step += 1
        self.flops.append(flops)
        self.marks.append((len(self.events), self.step))
        self.phase = "between"

    def recording(self, **more: Any) -> Recording:
        """All that was written down."""
        return Recording(
            **{
                "events": np.array(self.events, dtype=EVENT),
                "blocks": np.array(self.blocks, dtype=BLOCK),
                "sites": self.sites,
                "ops": self.ops,
                "names": self.names,
                "step_marks": self.marks,
                "collectives": self.collectives,
                "flops": self.flops,
                **more,
            }
        )

    def _write(self, block: int, size: int, address: int, stream: int, space: int) -> None:
        time_ns = 1000 * len(self.events) + 5_000_000_000
        self.events.append(
            (time_ns, block, size, address, self.step, stream, int(space), RUN_PHASES.index(self.phase))
        )


def training(layers: int = 4, steps: int = 2) -> Recording:
    """Training with ZeRO-2 and the moments of Adam from the first step on.

    A layer has 64 MiB of parameters and 32 MiB of activations; its gradients (64 MiB) are reduced through a
    bucket of 128 MiB. The logits take 256 MiB in the loss. On the host lie 96 MiB, half of it pinned.
    """
    run = Recorder()
    for layer in range(layers):
        run.allocate(
            64 * MIB, "parameters", name=f"layers.{layer}.weight", shape=(4096, 8192), dtype=BFLOAT16,
            site="/home/me/train.py:12 in build", op="aten::empty",
        )  # fmt: skip
    run.allocate(32 * MIB, "optimizer_states", site="stage_1_and_2.py:560 in __init__", dtype=FLOAT32)
    run.allocate(48 * MIB, space=Space.PAGEABLE_HOST)
    run.allocate(48 * MIB, space=Space.PINNED_HOST)
    run.communicate("broadcast", layers * 64 * MIB)
    moments: list[int] = []
    for number in range(steps):
        _train_one_step(run, layers, moments)
        run.end_step(flops=7_000_000 + number)
    return run.recording(
        allocator={"ordinary": allocator_figures(run, 1.1), "expandable": allocator_figures(run, 1.02)},
        warnings=("host memory is not pinned",),
        facts=RankFacts(
            elapsed_seconds=4.5,
            stopped_after_steps=steps,
            suppressed=["checkpoint in runs/a"],
            made_up=[MadeUpResult(what="nonzero: assumed all true", site="train.py:40 in mask", count=3)],
            versions={"torch": "2.13.0"},
            ds_config={
                "train_micro_batch_size_per_gpu": 4,
                "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": True},
            },
        ),
    )


def _train_one_step(run: Recorder, layers: int, moments: list[int]) -> None:
    run.phase = "forward"
    activations = [
        run.allocate(
            32 * MIB, "activations", shape=(2, 2048, 4096), dtype=BFLOAT16, op="aten::mm",
            site="/home/me/train.py:30 in forward",
        )
        for _ in range(layers)
    ]  # fmt: skip
    run.phase = "loss"
    logits = run.allocate(256 * MIB, "activations", site="/home/me/train.py:44 in loss", op="aten::mm")
    run.phase = "backward"
    bucket = run.allocate(128 * MIB, "buffers", stream=1, site="stage_1_and_2.py:3266 in bucket")
    run.release(logits)
    gradients = []
    for activation in reversed(activations):
        gradients.append(run.allocate(64 * MIB, "gradients", shape=(4096, 8192), dtype=BFLOAT16))
        run.communicate("reduce_scatter", 64 * MIB)
        run.release(activation)
    run.release(bucket)
    run.phase = "step"
    if not moments:
        moments += [run.allocate(32 * MIB, "optimizer_states", dtype=FLOAT32) for _ in range(2)]
    copy = run.allocate(16 * MIB, site="stage_1_and_2.py:3117 in step")
    run.release(copy, *gradients)
    run.communicate("all_gather", layers * 64 * MIB)


def timed(collective: str, *, launching: int, **facts_of_run: Any) -> RehearsalReport:
    """Of a step of 100 ns, so many of which the host launches, with a collective; with more facts of the run."""
    run = Recorder()
    run.phase = "forward"
    run.communicate(collective, 7)
    run.end_step(1)
    work = [(0, 100 - launching, 0, 0, 0, WorkKind.KERNEL, RUN_PHASES.index("forward"))]
    facts = RankFacts(times=RankTimes(step_ends=[100], model_flops=[1], tokens_per_step=[11]), **facts_of_run)
    recording = run.recording(spans=np.array(work, SPAN), ops=("aten::mm",), facts=facts)
    return analyse(recording, job(timed_on=find_gpu("H100")))


def batches(size: BatchSize, **changes: Any) -> Batches:
    """Batches of one size, whose data was not searched."""
    tokens = {"rehearsed_tokens": size.tokens, "longest_tokens": size.tokens}
    search = {"rehearsed": [], "scanned": 0, "of": None, "is_whole": False, "seconds": 5.0, "problem": None}
    return Batches(**{"first": size, "largest": size, **tokens, **search, **changes})


def allocator_figures(run: Recorder, factor: float) -> dict[str, int]:
    """What a caching allocator might say of a run."""
    device = [event for event in run.events if event[6] == Space.DEVICE]
    peak = int(np.cumsum([event[2] for event in device]).max())
    return {
        "reserved_peak_bytes": int(peak * factor),
        "reserved_bytes": int(peak * factor),
        "allocated_peak_bytes": peak,
        "active_peak_bytes": peak,
        "inactive_split_peak_bytes": int(peak * (factor - 1)),
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_segments": 7,
    }


def large(events: int = 400_000) -> Recording:
    """A recording of a large model's length: all blocks small, allocated and released at random."""
    random = np.random.default_rng(0)
    pairs = events // 2
    births = np.sort(random.uniform(0, 1, pairs))
    deaths = births + random.exponential(0.01, pairs)
    sizes = random.integers(1, 2000, pairs) * 512
    order = np.argsort(np.concatenate([births, deaths]), kind="stable")
    table = np.zeros(2 * pairs, dtype=EVENT)
    table["block"] = np.concatenate([np.arange(pairs)] * 2)[order]
    table["bytes"] = np.concatenate([sizes, -sizes])[order]
    table["address"] = (0x7F0000000000 + np.concatenate([np.cumsum(sizes) - sizes] * 2))[order]
    table["time_ns"] = np.arange(2 * pairs) * 700
    table["phase"] = np.arange(2 * pairs) // (events // 40) % len(RUN_PHASES)
    blocks = np.zeros(pairs, dtype=BLOCK)
    blocks["bytes"] = sizes
    blocks["category"] = random.integers(0, len(CATEGORY_CODES), pairs)
    blocks["site"] = random.integers(0, 50, pairs)
    blocks["dtype"] = BFLOAT16
    blocks["ndim"] = 1
    blocks["name"] = -1
    blocks["op"] = -1
    return Recording(events=table, blocks=blocks, sites=[f"model.py:{line} in forward" for line in range(50)])


def _place(table: list[str], text: str | None) -> int:
    if text is None:
        return -1
    if text not in table:
        table.append(text)
    return table.index(text)

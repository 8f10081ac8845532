from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.rehearsal.recordings import MIB, Recorder, batches, device_with, job, timed, training
from zerokit.errors import DocumentError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.ranges import range_line
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.ranks.roles import Roles, data_parallel
from zerokit.rehearsal.recording import BLOCK, DTYPES, EVENT, SPAN, RankFacts, RankTimes, Recording, Space
from zerokit.rehearsal.report.analysis import LARGEST_BLOCKS, analyse, overheads
from zerokit.rehearsal.report.combination import combine
from zerokit.rehearsal.report.report import BatchSize, LargestBatch, RehearsalReport, Unit
from zerokit.rehearsal.report.step_time import _range, doubts
from zerokit.rehearsal.report.tables import time_parts

GIB = 2**30
COSTS = CardCosts(Cluster(2, gpu=find_gpu("A100-80")))


def test_the_peak_and_what_makes_it() -> None:
    device = analyse(training(), job()).device
    # As the second backward begins: parameters, all three optimizer states, activations, logits, the bucket.
    assert device.peak_bytes == (256 + 96 + 4 * 32 + 256 + 128) * MIB
    assert (device.peak_phase, device.peak_step) == ("backward", 1)
    assert device.at_peak == {
        "other": 0,
        "parameters": 256 * MIB,
        "gradients": 0,
        "optimizer_states": 96 * MIB,
        "activations": 384 * MIB,
        "buffers": 128 * MIB,
    }


def test_times_of_steps_stand_in_the_report_only_if_time_was_rehearsed() -> None:
    assert "time" not in analyse(training(), job()).model_dump()
    ops = ("aten::mm.out", "aten::mm", "all_reduce")
    work = [
        (0, 40, 0, 0, 0, WorkKind.KERNEL, 2),
        (40, 100, 1, 0, 0, WorkKind.KERNEL, 2),
        (120, 200, 2, 1, 1001, WorkKind.COLLECTIVE, 2),
    ]
    recording = replace(
        training(),
        spans=np.array([(begin, end, name, *rest) for begin, end, name, *rest in work], SPAN),
        ops=ops,
        flops=(1, 989),
        facts=RankFacts(times=RankTimes(step_ends=[100, 210], model_flops=[1, 494.5], tokens_per_step=[99, 11])),
    )
    time = analyse(recording, job(timed_on=find_gpu("H100"))).time
    assert time is not None
    assert [round(step.seconds * 1e9) for step in time.steps] == [100, 110]
    assert [(one.name, one.count) for one in time.kernels] == [("all_reduce", 1)]
    assert time.low_seconds < time.step_seconds < time.high_seconds
    assert time.tokens_per_second == pytest.approx(1e8)
    # The card could do 989e12 in a second.
    assert time.hfu == pytest.approx(1 / 110e-9 / 1e12)
    assert time.mfu == pytest.approx(time.hfu / 2)


@pytest.mark.parametrize(
    ("launching", "tokens", "unit", "ranks", "words"),
    [
        (10, 2048, "tokens", 8, "DeepSpeed, limited by GPU kernels or by a network whose speed is assumed"),
        (40, 2048, "tokens", 8, "DeepSpeed, limited by the host's Python and launches"),
        (10, 512, "tokens", 8, "DeepSpeed, limited by the host's Python and launches"),
        (10, 512, "values", None, "without DeepSpeed, limited by GPU kernels or by a network whose speed is assumed"),
    ],
)
def test_the_range_is_that_of_the_runs_class(
    launching: int, tokens: int, unit: Unit, ranks: int | None, words: str
) -> None:
    size = BatchSize(shape=[1, tokens], unit=unit, tokens=tokens, bytes=1)
    report = timed("all_reduce", launching=launching, batches=batches(size), data_parallel_ranks=ranks)
    time = report.time
    assert time is not None
    assert time.run_class == words
    assert ("larger micro-batches" in time.narrower_with) == ("host" in words)
    assert time.low_seconds <= time.costs_low_seconds < time.costs_high_seconds <= time.high_seconds
    assert any(line == f"  {range_line(words, time.narrower_with)}" for line in time_parts(time, of_several=False))


@pytest.mark.parametrize(
    ("threads", "share", "is_warned"), [(1, 0.3, True), (None, 0.3, False), (16, 0.3, False), (1, 0.1, False)]
)
def test_few_threads_for_much_cpu_work_give_a_warning(threads: int, share: float, is_warned: bool) -> None:
    time = timed("all_reduce", launching=0).time
    assert time is not None
    parts = time.breakdown.model_copy(update={"host_operators": share * time.step_seconds})
    time = time.model_copy(update={"host_threads": threads, "breakdown": parts})
    said = "CPU work is done by 1 thread of each rank, and takes 2.7 times as long"
    assert [said in line for line in doubts(time, COSTS)] == [True] * is_warned


@pytest.mark.parametrize(("stage", "is_warned"), [("pipeline stage 1 of 2", True), ("pipeline stages 1 to 8", False)])
def test_the_speed_of_a_pipeline_is_that_of_all_its_stages(stage: str, is_warned: bool) -> None:
    first = timed("send", launching=0)
    assert first.time is not None
    # The other stage does three times as much, and needs a moment less for its step.
    waits = first.time.breakdown.model_copy(update={"other_ranks": 1e-9})
    times = {"rank": 15, "step_seconds": 0.995 * first.time.step_seconds, "mfu": 3 * (first.time.mfu or 0)}
    other = first.time.model_copy(update={"breakdown": waits, "tokens_per_second": None, **times})
    roles = Roles(("pipeline stage 0 of 2", stage), (0,) * 8 + (1,) * 8, (0, 15))
    both = combine({0: first, 15: first.model_copy(update={"rank": 15, "time": other})}, roles)
    assert any("pipeline" in line for line in both.warnings) != is_warned
    assert (both.time is not None) == is_warned
    if both.time is not None:
        # It is is_warned whose time it is: of whom the other waits for.
        assert (both.time.rank, both.time.breakdown) == (0, first.time.breakdown)
        alone, of_several = (next(iter(time_parts(both.time, of_several=one))) for one in (False, True))
        assert "step 1 takes" in str(alone)
        assert "step 1 of rank 0 takes" in str(of_several)
        assert both.time.tokens_per_second == first.time.tokens_per_second
        assert both.time.mfu == pytest.approx((1 + 3 * 0.995) / 2 * (first.time.mfu or 0))


def test_the_speed_of_ranks_with_uneven_batches_is_their_mean() -> None:
    first = timed("all_reduce", launching=0)
    assert first.time is not None
    tokens = 1000 / first.time.step_seconds
    few = first.time.model_copy(update={"tokens_per_second": tokens, "mfu": 0.2})
    many = first.time.model_copy(update={"tokens_per_second": 3 * tokens, "mfu": 0.6})
    last = first.model_copy(update={"rank": 15, "time": many.model_copy(update={"rank": 15})})
    both = combine({0: first.model_copy(update={"time": few}), 15: last}, data_parallel(16)).time
    assert both is not None
    assert both.rank == 0  # neither waits for the other
    assert both.tokens_per_second == pytest.approx(2 * tokens)
    assert both.mfu == pytest.approx(0.4)


REDUCE = ("all_reduce", 5, 100, 1001)


@pytest.mark.parametrize(
    ("work", "low", "high"),
    [
        # By the spreads of a card that was not measured. What is hidden comes out where it is slower ...
        ([("aten::mm", 0, 100, 0), REDUCE], 0.75 * (5 + 95 / 1.189), 5 * 1.5 + 95 * 1.8),
        # ... and hides what it hid where it is faster; a collective slows kernels by 1 to 1.4 times.
        ([("aten::gelu", 0, 100, 0), REDUCE], 0.8 * (5 + 95 / 1.189), 5 * 1.4 + 95 * 1.8),
        ([("flash_attention_2 backward", 0, 100, 0)], 70, 150),
        ([("aten::mm", 0, 50, 0), ("aten::add", 50, 100, 0)], 0.75 * 50 + 0.8 * 50, 1.5 * 50 + 1.4 * 50),
        ([("h2d", 0, 100, 0)], 80, 150),
        ([("adam", 0, 100, -1)], 40, 200),
        # The host launches for all 100, kernels or not; at its fastest the kernels take longer.
        ([("aten::mm", 0, 40, 0), ("aten::mm", 60, 100, 0)], 0.75 * 80, 180),
    ],
)
def test_the_range_of_a_step_is_that_of_its_work_by_kind_hidden_or_not(
    work: list[tuple[str, int, int, int]], low: float, high: float
) -> None:
    kinds = {"all_reduce": WorkKind.COLLECTIVE, "h2d": WorkKind.COPY, "adam": WorkKind.OPTIMIZER}
    spans = [
        (begin, end, place, 1, stream, kinds.get(name, WorkKind.KERNEL), 2)
        for place, (name, begin, end, stream) in enumerate(work)
    ]
    if len(work) == 1 or work[0][2] == 100 or work[-1][0] == "aten::add":  # the host waits for it
        spans.append((0, 100, len(work), 1, -1, WorkKind.WAITING, 2))
    recording = replace(training(), spans=np.array(spans, SPAN), ops=(*(name for name, *_ in work), "wait"))
    recording.spans["begin"] *= 10**6
    recording.spans["end"] *= 10**6
    costs = job(timed_on=find_gpu("RTX 4090")).costs
    assert costs is not None
    found = _range(recording, 0, 100 * 10**6, costs)
    assert [1000 * one for one in found] == pytest.approx([low, high], rel=0.01)


def test_steady_is_after_the_last_completed_step() -> None:
    run = Recorder()
    run.allocate(10)
    run.end_step(1)
    assert analyse(run.recording(), job()).device.steady_bytes == 10
    run.allocate(500)
    assert analyse(run.recording(), job()).device.steady_bytes == 10
    assert analyse(run.recording(step_marks=[]), job()).device.steady_bytes == 510


def test_steps_that_rehearse_the_largest_batches_are_no_others() -> None:
    run = Recorder()
    run.phase = "forward"
    run.allocate(10)
    run.end_step(1)
    run.phase = "forward"
    run.communicate("all_reduce", 7)
    run.release(run.allocate(1000))
    run.allocate(500)
    run.end_step(5)
    size = BatchSize(shape=[4, 512], unit="tokens", tokens=2048, bytes=1)
    found = LargestBatch(size=size, number=1057, rank=3, first_step=2, last_step=2)
    facts = RankFacts(requested_steps=1, batches=batches(size, rehearsed=[found]))
    report = analyse(run.recording(facts=facts), job())
    assert (report.steps, report.device.peak_bytes, report.device.steady_bytes) == (2, 1010, 10)
    assert (report.flops_per_step, report.communication) == (1, [])
    assert report.fit.batch == "4 x 512 tokens (batch 1,057 of epoch 1, rank 3)"


def test_the_peak_of_each_phase_counts_what_it_begins_with() -> None:
    run = Recorder()
    weight = run.allocate(10)
    run.phase = "forward"
    hidden = run.allocate(30)
    run.phase = "step"
    run.release(hidden)
    run.release(weight)
    assert analyse(run.recording(), job()).device.by_phase == {"init": 10, "forward": 40, "step": 40}


def test_call_sites_at_the_peak() -> None:
    sites = analyse(training(), job()).device.sites_at_peak
    assert (sites[0].site, sites[0].bytes, sites[0].blocks) == ("/home/me/train.py:12 in build", 256 * MIB, 4)
    assert {site.site for site in sites} >= {"unknown"}
    assert sum(site.bytes for site in sites) == analyse(training(), job()).device.peak_bytes


def test_the_largest_blocks_at_the_peak() -> None:
    blocks = analyse(training(layers=30), job()).device.largest_blocks_at_peak
    assert len(blocks) == LARGEST_BLOCKS
    assert [block.bytes for block in blocks] == sorted((block.bytes for block in blocks), reverse=True)
    weight = next(block for block in blocks if block.category == "parameters")
    assert weight.model_dump() == {
        "bytes": 64 * MIB, "shape": [4096, 8192], "dtype": "bfloat16", "name": "layers.0.weight",
        "site": "/home/me/train.py:12 in build", "op": "aten::empty", "category": "parameters",
        "phase": "init",
    }  # fmt: skip


def test_host_memory_by_rank_and_node() -> None:
    host = analyse(training(), job()).host
    assert (host.peak_bytes, host.steady_bytes, host.pinned_bytes) == (96 * MIB, 96 * MIB, 48 * MIB)
    assert (host.per_node_peak_bytes, host.per_node_pinned_bytes) == (768 * MIB, 384 * MIB)
    alone = analyse(training(), job(num_gpus=2)).host
    assert alone.per_node_peak_bytes == 192 * MIB


def test_steps_are_told_apart() -> None:
    first, second = analyse(training(), job()).per_step
    assert (first.step, second.step) == (1, 2)
    assert second.peak_bytes - first.peak_bytes == 64 * MIB  # Adam's moments come with the first step
    assert first.steady_bytes == second.steady_bytes == 352 * MIB
    assert (first.flops, second.flops) == (7_000_000, 7_000_001)
    assert first.communication_bytes == second.communication_bytes == 512 * MIB


def test_communication_is_that_of_the_last_step_and_of_init() -> None:
    report = analyse(training(), job())
    counted = [(call.collective, call.phase, call.count, call.bytes) for call in report.communication]
    assert counted == [
        ("broadcast", "init", 1, 256 * MIB),
        ("reduce_scatter", "backward", 4, 256 * MIB),
        ("all_gather", "step", 1, 256 * MIB),
    ]
    assert report.flops_per_step == 7_000_001


def test_reserved_memory_is_of_the_segments_the_run_asks_for() -> None:
    device = analyse(training(), job()).device
    assert device.reserved_peak_bytes == device.allocator["ordinary"].reserved_peak_bytes
    assert device.allocator["ordinary"].fragmentation_bytes == device.reserved_peak_bytes - 864 * MIB
    expandable = replace(training(), facts=RankFacts(expandable_segments=True))
    device = analyse(expandable, job()).device
    assert device.segments == "expandable"
    assert device.reserved_peak_bytes == device.allocator["expandable"].reserved_peak_bytes


@pytest.mark.parametrize(
    ("gpu_memory", "verdict"), [(80 * GIB, "fits"), (2 * GIB, "likely does not fit"), (1 * GIB, "does not fit")]
)
def test_whether_it_fits(gpu_memory: int, verdict: str) -> None:
    fit = analyse(training(), job(device=device_with(gpu_memory))).fit
    assert fit.verdict == verdict
    assert fit.low_bytes == 864 * MIB + sum(line.low_bytes for line in fit.overheads)
    assert fit.high_bytes > fit.low_bytes


def test_nothing_recorded_is_a_report_of_nothing() -> None:
    empty = Recording(events=np.zeros(0, EVENT), blocks=np.zeros(0, BLOCK))
    report = analyse(empty, job())
    assert (report.steps, report.device.peak_bytes, report.device.by_phase) == (0, 0, {})
    assert report.device.largest_blocks_at_peak == []


def test_ranks_that_agree_are_one_report() -> None:
    first = analyse(training(), job())
    last = analyse(training(), job(rank=15))
    both = combine({0: first, 15: last}, data_parallel(16))
    assert both == first.model_copy(update={"ranks_rehearsed": [0, 15]})


def test_ranks_that_differ_are_both_reported() -> None:
    first = analyse(_with_host(1000 * MIB), job(device=device_with(2 * GIB)))
    last = analyse(_with_host(0), job(rank=15, device=device_with(GIB)))
    both = combine({0: first, 15: last}, data_parallel(16))
    assert [(rank.rank, rank.host_peak_bytes) for rank in both.ranks] == [(0, 1000 * MIB), (15, 0)]
    assert both.host.per_node_peak_bytes == 1000 * MIB
    assert both.fit == last.fit  # needs as much, and has less
    assert both.rank == 0


def test_a_stage_without_batches_of_its_own_is_given_those_of_another() -> None:
    size = BatchSize(shape=[4, 512], unit="tokens", tokens=2048, bytes=1)
    found = batches(size)
    first = analyse(_with_host(0), job()).model_copy(update={"batches": found})
    last = analyse(training(), job(rank=15))
    stages = Roles(("pipeline stage 0 of 2", "pipeline stage 1 of 2"), (0,) * 8 + (1,) * 8, (0, 15))
    both = combine({0: first, 15: last}, stages)
    assert (both.rank, both.batches) == (15, found)


def test_host_memory_is_told_by_what_it_is_for() -> None:
    run = Recorder()
    run.allocate(3, "optimizer_states", space=Space.PINNED_HOST)
    run.allocate(5, "optimizer_states", space=Space.PAGEABLE_HOST)
    run.release(run.allocate(7, "buffers", space=Space.PINNED_HOST))
    run.allocate(1, "parameters", space=Space.PAGEABLE_HOST)
    host = analyse(run.recording(), job()).host
    held = {name: size for name, size in host.at_peak.items() if size}
    assert (held, host.pinned_at_peak["buffers"]) == ({"optimizer_states": 8, "buffers": 7}, 7)
    assert host.pinned_at_peak["optimizer_states"] == 3


def _with_host(size: int) -> Recording:
    run = Recorder()
    run.allocate(864 * MIB)
    if size:
        run.allocate(size, space=Space.PAGEABLE_HOST)
    run.end_step(1)
    return run.recording()


def _communication(num_gpus: int, group_sizes: set[int] | None = None) -> tuple[int, int]:
    line = overheads(Cluster(num_gpus), group_sizes or {num_gpus})[1]
    return line.low_bytes, line.high_bytes


def test_more_communicators_hold_more_buffers_and_a_single_gpu_none() -> None:
    context = overheads(Cluster(1), set())[0]
    assert (context.low_bytes, context.high_bytes) == pytest.approx((0.47 * GIB, 0.92 * GIB), abs=1)
    alone, one, two = _communication(1), _communication(64, {64}), _communication(64, {64, 8, 1})
    assert (alone[0], two[0]) == (0, 2 * one[0])
    assert alone[1] < _communication(2)[1]
    assert two[1] > one[1]
    assert one[1] == pytest.approx(1.45 * GIB, abs=1)


def test_the_agreed_keys_are_there() -> None:
    data = json.loads(analyse(training(), job()).model_dump_json())
    keys = "world_size rank steps elapsed_seconds device host communication flops_per_step warnings"
    assert data.keys() >= set(keys.split())
    assert data["device"].keys() >= {"peak_bytes", "steady_bytes", "reserved_peak_bytes", "peak_phase"}
    categories = {"parameters", "gradients", "optimizer_states", "activations", "buffers", "other"}
    assert data["device"]["at_peak"].keys() == categories
    assert data["host"].keys() >= {"peak_bytes", "steady_bytes", "pinned_bytes"}
    assert data["communication"][0].keys() >= {"collective", "phase", "count", "bytes"}
    assert data["made_up"] == [{"what": "nonzero: assumed all true", "site": "train.py:40 in mask", "count": 3}]
    assert data["suppressed"] == ["checkpoint in runs/a"]


def test_a_report_survives_json() -> None:
    report = analyse(training(), job())
    assert RehearsalReport.model_validate_json(report.model_dump_json()) == report


# ---- recordings


def test_a_recording_survives_a_file(tmp_path: Path) -> None:
    recording = training()
    recording.save(tmp_path / "rank0.npz")
    loaded = Recording.load(tmp_path / "rank0.npz")
    assert np.array_equal(loaded.events, recording.events)
    assert np.array_equal(loaded.blocks, recording.blocks)
    for name in ("sites", "ops", "names", "step_marks", "collectives", "flops", "allocator", "warnings"):
        assert getattr(loaded, name) == getattr(recording, name)
    assert loaded.facts == recording.facts


def test_a_file_that_is_no_recording_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, a=np.zeros(1))
    text = tmp_path / "text.npz"
    text.write_text("not a zip file")
    for path in (other, text, tmp_path / "absent.npz"):
        with pytest.raises(DocumentError, match=re.escape(str(path))):
            Recording.load(path)


def test_arrays_that_contradict_each_other_are_rejected() -> None:
    events = np.zeros(1, EVENT)
    with pytest.raises(ValueError, match="block"):
        Recording(events=events, blocks=np.zeros(0, BLOCK))
    with pytest.raises(ValueError, match="fields"):
        Recording(events=np.zeros(1), blocks=np.zeros(1, BLOCK))
    events["bytes"] = -1
    with pytest.raises(ValueError, match="released"):
        Recording(events=events, blocks=np.zeros(1, BLOCK))
    events["bytes"], events["phase"] = MIB, 9
    with pytest.raises(ValueError, match="phase"):
        Recording(events=events, blocks=np.zeros(1, BLOCK))


def test_number_formats_are_those_of_torch() -> None:
    import torch

    header = Path(torch.__file__).parent / "include" / "torch" / "headeronly" / "core" / "ScalarType.h"
    numbered = re.findall(r"_\([^,()]+(?:<[^>]*>)?[^,()]*, (\w+)\) /\* (\d+) \*/", header.read_text())
    assert len(numbered) >= 40
    names = {
        "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
        "Half": "float16", "Float": "float32", "Double": "float64", "Bool": "bool", "BFloat16": "bfloat16",
        "ComplexHalf": "complex32", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
    }  # fmt: skip
    for name, number in numbered:
        expected = names.get(name, name.lower())
        assert DTYPES[int(number)] == expected
        assert hasattr(torch, expected)

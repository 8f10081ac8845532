from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.rehearsal.recordings import MIB, Recorder, job, large, training
from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import virtual_device
from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.recording import BLOCK, EVENT, SPAN, RankFacts, RankTimes, Recording, Space
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.drawings import Drawings
from zerokit.rehearsal.report.last_step import MOST_POINTS, MOST_SPANS, memory_curve, stream_work
from zerokit.rehearsal.report.trace import write_trace
from zerokit.reporting.phases import RUN_PHASES


def _events(recording: Recording, path: Path) -> list[dict[str, Any]]:
    write_trace(recording, path)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_counters_follow_the_memory(tmp_path: Path) -> None:
    recording = training()
    counters = [event for event in _events(recording, tmp_path / "t.json") if event["ph"] == "C"]
    device = [event for event in counters if event["name"].startswith("device")]
    assert [sum(event["args"].values()) for event in device] == recording.running_bytes(Space.DEVICE)[
        recording.events["space"] == Space.DEVICE
    ].tolist()
    pinned = [event for event in counters if event["name"].startswith("pinned")]
    assert [event["args"] for event in pinned] == [{"other": 48 * MIB}]


def test_phases_and_steps_are_slices(tmp_path: Path) -> None:
    slices = [event for event in _events(training(), tmp_path / "t.json.gz") if event["ph"] == "X"]
    phases = [event["name"] for event in slices if event["tid"] == 2]
    assert phases == ["init", *["forward", "loss", "backward", "step"] * 2]
    assert [event["name"] for event in slices if event["tid"] == 1] == ["start and step 1", "step 2"]
    assert all(event["dur"] >= 0 for event in slices)


def test_collectives_are_instants_in_their_phase(tmp_path: Path) -> None:
    events = _events(training(), tmp_path / "t.json")
    instants = [event for event in events if event["ph"] == "i"]
    assert len(instants) == 1 + 2 * 5
    backward = next(event for event in events if event["ph"] == "X" and event["name"] == "backward")
    scattered = next(event for event in instants if event["name"] == "reduce_scatter")
    assert backward["ts"] <= scattered["ts"] <= backward["ts"] + backward["dur"]
    assert scattered["args"] == {"bytes": 64 * MIB, "group_size": 16, "phase": "backward", "step": 0}


def test_a_long_run_stays_small_and_keeps_its_peak(tmp_path: Path) -> None:
    recording = large()
    events = _events(recording, tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 50_000_000
    held = [sum(event["args"].values()) for event in events if event["ph"] == "C"]
    assert max(held) == recording.running_bytes(Space.DEVICE).max()


def test_nothing_recorded_is_a_valid_trace(tmp_path: Path) -> None:
    empty = Recording(events=np.zeros(0, EVENT), blocks=np.zeros(0, BLOCK))
    assert {event["ph"] for event in _events(empty, tmp_path / "t.json")} == {"M"}


def texts(picture: Path) -> list[str]:
    return [text for part in ElementTree.parse(picture).iter() if (text := (part.text or "").strip())]


def test_the_plot_names_categories_phases_and_capacity(tmp_path: Path) -> None:
    recording = training()
    report = analyse(recording, job(device=virtual_device(find_gpu("V100-16GB"))))
    for name in ("memory.svg", "again.svg"):
        assert Drawings(plot=tmp_path / name).write(recording, report) == []
    assert (tmp_path / "memory.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    words = texts(tmp_path / "memory.svg")
    assert {"parameters", "optimizer states", "activations", "backward", "GiB"} <= set(words)
    assert any("864.00 MiB" in text for text in words)
    assert any(text.startswith("Allocated on the GPU of rank 0 during step 2") for text in words)


def test_no_step_is_a_warning(tmp_path: Path) -> None:
    run = Recorder()
    run.allocate(512, "parameters")
    report = analyse(training(), job())
    report = report.model_copy(update={"device": report.device.model_copy(update={"curve": None})})
    warnings = Drawings(plot=tmp_path / "a.svg", timeline=tmp_path / "b.svg").write(run.recording(), report)
    assert [line.partition(":")[0] for line in warnings] == ["--plot", "--timeline"]
    assert list(tmp_path.iterdir()) == []


def _timed_step() -> Recording:
    run = Recorder()
    run.phase = "forward"
    run.end_step(1)
    forward = RUN_PHASES.index("forward")
    work = [
        (0, 40_000_000, 0, WorkKind.KERNEL),
        (40_000_000, 60_000_000, 1001, WorkKind.MEETING),
        (60_000_000, 80_000_000, 1001, WorkKind.COLLECTIVE),
        (0, 80_000_000, -1, WorkKind.WAITING),
    ]
    spans = np.array([(begin, end, 0, 0, stream, kind, forward) for begin, end, stream, kind in work], SPAN)
    facts = RankFacts(times=RankTimes(step_ends=[80_000_000], model_flops=[1], tokens_per_step=[11]))
    return run.recording(spans=spans, ops=("aten::mm",), facts=facts)


def test_the_streams_of_a_step_are_drawn_over_its_time(tmp_path: Path) -> None:
    recording = _timed_step()
    report = analyse(recording, job(timed_on=find_gpu("H100")))
    assert Drawings(timeline=tmp_path / "step.svg").write(recording, report) == []
    words = texts(tmp_path / "step.svg")
    assert {"default stream", "communicator 1", "host", "waiting for other ranks"} <= set(words)
    assert any("step 1, 80.0 ms" in text for text in words)


def test_the_report_has_the_streams_of_the_step() -> None:
    report = analyse(_timed_step(), job(timed_on=find_gpu("H100")))
    assert report.time is not None
    assert [(one.stream, one.kind, one.begin, one.end) for one in report.time.streams] == [
        ("host", "waiting", [0.0], [0.08]),
        ("default stream", "kernel", [0.0], [0.04]),
        ("communicator 1", "collective", [0.06], [0.08]),
        ("communicator 1", "meeting", [0.04], [0.06]),
    ]


def test_many_spans_are_merged_and_cover_the_same_time() -> None:
    spans = np.zeros(5000, SPAN)
    spans["begin"] = np.arange(5000) * 1000
    spans["end"] = spans["begin"] + 600
    [work] = stream_work(spans, 0, 5_000_000)
    assert len(work.begin) == len(work.end) <= MOST_SPANS
    assert (work.begin[0], work.end[-1]) == (0.0, 0.005)


def test_the_report_has_the_memory_over_the_last_step() -> None:
    recording = training()
    curve = analyse(recording, job()).device.curve
    assert curve is not None
    assert (curve.step, curve.unit) == (2, "events")
    begin, end = (mark.event for mark in recording.step_marks)
    assert (curve.at[0], curve.end) == (0.0, end - begin)
    total = recording.running_bytes(Space.DEVICE)
    held = [sum(levels) for levels in zip(*curve.bytes.values(), strict=True)]
    assert held == [int(total[begin + int(place)]) for place in curve.at]
    assert max(held) == total[begin:end].max()
    assert [one.phase for one in curve.phases] == ["forward", "loss", "backward", "step"]
    assert curve.phases[0].begin == 0.0
    assert curve.phases[-1].end == curve.end


def test_a_long_step_has_few_points_and_its_peak() -> None:
    run = Recorder()
    for size in (*range(1, 2000), 10**6, *range(1, 2000)):
        run.release(run.allocate(512 * size, "activations"))
    run.end_step(1)
    curve = memory_curve(run.recording())
    assert curve is not None
    assert len(curve.at) <= MOST_POINTS + 2
    assert max(curve.bytes["activations"]) == 512 * 10**6


@pytest.mark.parametrize("name", Drawings._fields)
def test_a_folder_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    recording = _timed_step() if name == "timeline" else training()
    report = analyse(recording, job(timed_on=find_gpu("H100")) if name == "timeline" else job())
    with pytest.raises(ZerokitError, match="absent"):
        Drawings(**{name: tmp_path / "absent" / "t.svg"}).write(recording, report)

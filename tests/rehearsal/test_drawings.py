from __future__ import annotations

import gzip
import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rehearsal.recordings import MIB, Recorder, job, large, training
from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.recording import BLOCK, EVENT, SPAN, RankFacts, RankTimes, Recording, Space
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.drawings import Drawings, write_plot, write_streams_plot
from zerokit.rehearsal.report.snapshot import snapshot, write_snapshot
from zerokit.rehearsal.report.trace import phase_runs, thinned, write_trace
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


# What the unpickler in torch/utils/viz/MemoryViz.js reads.
VIEWER_OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE",
    "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET",
    "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS",
    "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip
MOST_EXACT_IN_JAVASCRIPT = 2**53


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Any]:
    write_snapshot(training(), tmp_path / "s.pickle")
    with (tmp_path / "s.pickle").open("rb") as file:
        data: dict[str, Any] = pickle.load(file)
    return data


def test_torchs_own_tools_read_it(written: dict[str, Any]) -> None:
    from torch.cuda import _memory_viz

    # Four weights and three optimizer states; the sizes of all segments must add up, or segsum fails.
    assert "total_allocated: 352.0MiB" in _memory_viz.segsum(written)
    listing = _memory_viz.trace(written)
    assert "64.0MiB" in listing
    for plot_segments in (False, True):
        assert "MemoryViz.js" in _memory_viz.trace_plot(written, plot_segments=plot_segments)
    assert "MemoryViz.js" in _memory_viz.segment_plot(written)
    flames = _memory_viz.memory(written, format_flamegraph=str)
    assert f"stream_0;active_allocated;train.py:12:build {64 * MIB}" in flames
    remaining = _memory_viz.filter_alloc_free_pairs(written)["device_traces"][0]
    assert sum(entry["size"] for entry in remaining) == 352 * MIB


def test_the_viewers_timeline_has_the_same_peak(written: dict[str, Any]) -> None:
    held = most = 0
    for entry in written["device_traces"][0]:
        held += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        most = max(most, held)
    assert most == training().running_bytes(Space.DEVICE).max()


def test_every_block_lies_in_a_segment_all_the_time(written: dict[str, Any]) -> None:
    spans = [(part["address"], part["address"] + part["total_size"]) for part in written["segments"]]
    assert spans == sorted(spans)
    assert {segment["stream"] for segment in written["segments"]} == {0, 1}  # each has its own
    for entry in written["device_traces"][0]:
        if entry["action"] == "alloc":
            assert any(
                begin <= entry["addr"] and entry["addr"] + entry["size"] <= end for begin, end in spans
            )


def test_the_viewer_knows_every_opcode_and_number(tmp_path: Path) -> None:
    write_snapshot(training(), tmp_path / "s.pickle")
    for opcode, argument, _ in pickletools.genops((tmp_path / "s.pickle").read_bytes()):
        assert opcode.name in VIEWER_OPCODES
        if isinstance(argument, int):
            assert abs(argument) < MOST_EXACT_IN_JAVASCRIPT


def test_categories_include_the_one_the_viewer_insists_on() -> None:
    run = Recorder()
    run.allocate(512, "parameters")
    assert "unknown" in {entry["category"] for entry in snapshot(run.recording())["device_traces"][0]}


def test_a_block_is_described() -> None:
    trace = snapshot(training())["device_traces"][0]
    weight = next(entry for entry in trace if entry["action"] == "alloc")
    assert weight["user_metadata"] == (
        "parameters, bfloat16 4096x8192, layers.0.weight, aten::empty, from init"
    )
    assert weight["frames"] == [{"name": "build", "filename": "/home/me/train.py", "line": 12}]


GIB = 2**30


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("_matplotlib")
def test_the_plot_names_categories_phases_and_capacity(tmp_path: Path) -> None:
    recording = training()
    for name in ("memory.svg", "again.svg"):
        write_plot(recording, analyse(recording, job()), tmp_path / name, GIB)
    picture = (tmp_path / "memory.svg").read_text()
    assert picture == (tmp_path / "again.svg").read_text()
    for text in ("parameters", "optimizer states", "activations", "backward", "GPU, 1.00 GiB", "864.00 MiB"):
        assert f"<!-- {text} -->" in picture or text in picture
    assert "<pattern" in picture  # the hatching that replaces colours in black and white


@pytest.mark.usefixtures("_matplotlib")
def test_html_has_the_picture_and_the_categories_at_the_peak(tmp_path: Path) -> None:
    recording = training()
    write_plot(recording, analyse(recording, job()), tmp_path / "memory.html", GIB)
    page = (tmp_path / "memory.html").read_text()
    for text in ("<svg", "One GPU has 1.00 GiB", "<td>activations</td><td>384.00 MiB</td><td>44.4%</td>"):
        assert text in page


def test_thinning_keeps_the_peak_and_the_ends() -> None:
    total = np.random.default_rng(1).integers(0, 10**9, 100_000)
    places = thinned(total, 1000)
    assert len(places) <= 1002
    assert total[places].max() == total.max()
    assert (places[0], places[-1]) == (0, 99_999)
    assert thinned(total[:50], 1000).tolist() == list(range(50))


def test_phase_runs_cover_the_recording() -> None:
    runs = phase_runs(training())
    assert runs[0][2] == "init"
    assert [begin for begin, _, _ in runs[1:]] == [end for _, end, _ in runs[:-1]]
    assert runs[-1][1] == len(training().events)


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


@pytest.mark.usefixtures("_matplotlib")
def test_the_streams_of_a_step_are_drawn_over_its_time(tmp_path: Path) -> None:
    recording = _timed_step()
    report = analyse(recording, job(timed_on=find_gpu("H100")))
    write_streams_plot(recording, report, tmp_path / "step.svg")
    picture = (tmp_path / "step.svg").read_text()
    for text in ("default stream", "communicator 1", "host", "waiting for other ranks", "step 1, 80.0 ms"):
        assert text in picture


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize("name", Drawings._fields)
def test_a_folder_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    recording = _timed_step() if name == "timeline" else training()
    report = analyse(recording, job(timed_on=find_gpu("H100")) if name == "timeline" else job())
    with pytest.raises(ZerokitError, match="absent"):
        Drawings(**{name: tmp_path / "absent" / "t.svg"}).write(recording, report, GIB)

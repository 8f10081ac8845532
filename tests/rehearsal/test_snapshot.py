from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.recordings import MIB, Recorder, large, training
from zerokit.errors import ZerokitError
from zerokit.rehearsal.recording import Space
from zerokit.rehearsal.report.snapshot import snapshot, write_snapshot

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
    for entry in written["device_traces"][0]:
        if entry["action"] == "alloc":
            assert any(
                begin <= entry["addr"] and entry["addr"] + entry["size"] <= end for begin, end in spans
            )


def test_streams_have_segments_of_their_own(written: dict[str, Any]) -> None:
    assert {segment["stream"] for segment in written["segments"]} == {0, 1}


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


def test_a_long_run_fits_the_viewer(tmp_path: Path) -> None:
    write_snapshot(large(100_000), tmp_path / "s.pickle")
    assert (tmp_path / "s.pickle").stat().st_size < 15_000_000


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match="absent"):
        write_snapshot(training(), tmp_path / "absent" / "s.pickle")

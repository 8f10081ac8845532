from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rehearsal.recordings import MIB, large, training
from zerokit.errors import ZerokitError
from zerokit.rehearsal.recording import BLOCK, EVENT, Recording, Space
from zerokit.rehearsal.report.trace import write_trace


def _events(recording: Recording, path: Path) -> list[dict[str, Any]]:
    write_trace(recording, path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
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
    slices = [event for event in _events(training(), tmp_path / "t.json") if event["ph"] == "X"]
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


def test_collectives_without_a_moment_stand_where_their_phase_begins(tmp_path: Path) -> None:
    recording = training()
    timeless = [call._replace(event=-1) for call in recording.collectives]
    events = _events(Recording(**{**vars(recording), "collectives": timeless}), tmp_path / "t.json")
    backward = [event for event in events if event["ph"] == "X" and event["name"] == "backward"]
    scattered = [event for event in events if event["ph"] == "i" and event["name"] == "reduce_scatter"]
    assert {event["ts"] for event in scattered} == {event["ts"] for event in backward}


def test_a_name_in_gz_is_compressed(tmp_path: Path) -> None:
    write_trace(training(), tmp_path / "t.json.gz")
    with gzip.open(tmp_path / "t.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]


def test_a_long_run_stays_small_and_keeps_its_peak(tmp_path: Path) -> None:
    recording = large()
    events = _events(recording, tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 50_000_000
    held = [sum(event["args"].values()) for event in events if event["ph"] == "C"]
    assert max(held) == recording.running_bytes(Space.DEVICE).max()


def test_nothing_recorded_is_a_valid_trace(tmp_path: Path) -> None:
    empty = Recording(events=np.zeros(0, EVENT), blocks=np.zeros(0, BLOCK))
    assert {event["ph"] for event in _events(empty, tmp_path / "t.json")} == {"M"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match="absent"):
        write_trace(training(), tmp_path / "absent" / "t.json")

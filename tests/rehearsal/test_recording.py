from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.rehearsal.recordings import MIB, Recorder, training
from zerokit.errors import DocumentError
from zerokit.rehearsal.recording import BLOCK, CATEGORY_CODES, DTYPES, EVENT, HOST, Recording, Space


def test_running_bytes_follow_allocations_and_releases() -> None:
    run = Recorder()
    first = run.allocate(100, "parameters")
    run.allocate(7, space=Space.PINNED_HOST)
    second = run.allocate(20, "activations")
    run.release(first)
    run.release(second)
    recording = run.recording()
    assert recording.running_bytes(Space.DEVICE).tolist() == [100, 100, 120, 20, 0]
    assert recording.running_bytes(*HOST).tolist() == [0, 7, 7, 7, 7]
    activations = CATEGORY_CODES.index("activations")
    assert recording.running_bytes(Space.DEVICE, category=activations).tolist() == [0, 0, 20, 20, 0]


def test_alive_lists_what_is_not_released_yet() -> None:
    run = Recorder()
    first = run.allocate(100)
    second = run.allocate(20)
    host = run.allocate(7, space=Space.PAGEABLE_HOST)
    run.release(first)
    recording = run.recording()
    assert recording.alive(2, Space.DEVICE)["block"].tolist() == [first, second]
    assert recording.alive(3, Space.DEVICE)["block"].tolist() == [second]
    assert recording.alive(3, *HOST)["block"].tolist() == [host]
    assert len(recording.alive(-1, Space.DEVICE)) == 0


@pytest.mark.parametrize("event", [0, 10, 36, 50])
def test_what_is_alive_adds_up_to_what_is_held(event: int) -> None:
    recording = training()
    assert recording.alive(event, Space.DEVICE)["bytes"].sum() == recording.running_bytes(Space.DEVICE)[event]


def test_a_recording_survives_a_file(tmp_path: Path) -> None:
    recording = training()
    recording.save(tmp_path / "rank0.npz")
    loaded = Recording.load(tmp_path / "rank0.npz")
    assert np.array_equal(loaded.events, recording.events)
    assert np.array_equal(loaded.blocks, recording.blocks)
    for name in ("sites", "ops", "names", "step_marks", "collectives", "flops", "allocator", "warnings"):
        assert getattr(loaded, name) == getattr(recording, name)
    assert loaded.made_up == recording.made_up
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

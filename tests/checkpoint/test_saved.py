"""What a saved checkpoint must be before a run continues from it: as it was saved, and without code in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from zerokit.checkpoint.checksums import (
    check_checksums,
    checksums,
    complete_checksums,
    files_of,
    read_checksums,
    record_num_files,
    write_checksums,
)
from zerokit.checkpoint.pickles import check_pickles, known_classes_only
from zerokit.checkpoint.torch_file import read_archive
from zerokit.errors import CheckpointError

STATES = "global_step2/mp_rank_00_model_states.pt"


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


class LookedUp:
    """Pickled as a member of an enum by Python 3.11.2: as a look-up of its name."""

    def __init__(self, *looked_up: object) -> None:
        self.looked_up = looked_up

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, self.looked_up


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with all that DeepSpeed and the Trainer pickle."""
    (tmp_path / "global_step2").mkdir()
    states = {
        "module": {"weight": torch.ones(512)},
        "loss_scaler": [LossScaler(1.0), DynamicLossScaler(4.0, 9, 1.0, 2, False)],
        "zero_stage": ZeroStageEnum(2),
        "param_slice_mappings": {"weight": fragment_address(numel=4, start=0)},
    }
    torch.save(states, tmp_path / STATES)
    torch.save({"numpy": np.random.get_state()}, tmp_path / "rng_state_0.pth")
    (tmp_path / "trainer_state.json").write_text("{}")
    write_checksums(tmp_path, checksums(tmp_path, files_of(tmp_path)))
    return tmp_path


def test_what_deepspeed_saves_is_let_in(folder: Path) -> None:
    check_pickles(folder, files_of(folder))
    with known_classes_only():
        loaded = torch.load(folder / STATES, weights_only=False)
    assert loaded["param_slice_mappings"]["weight"].numel == 4


def test_a_stage_that_is_looked_up_by_its_name_is_let_in(folder: Path) -> None:
    torch.save({"module": {}, "zero_stage": LookedUp(ZeroStageEnum, "weights")}, folder / STATES)
    check_pickles(folder, files_of(folder))
    with known_classes_only():
        assert torch.load(folder / STATES, weights_only=False)["zero_stage"] is ZeroStageEnum.weights
    assert read_archive(folder / STATES).content["zero_stage"].arguments == (3,)


@pytest.mark.parametrize("looked_up", [(ZeroStageEnum, "__init__"), (DynamicLossScaler, "update_scale")])
def test_nothing_else_is_looked_up(looked_up: tuple[object, str], folder: Path) -> None:
    torch.save({"module": {}, "zero_stage": LookedUp(*looked_up)}, folder / STATES)
    with pytest.raises(CheckpointError, match="look up an attribute"):
        check_pickles(folder, files_of(folder))
    with pytest.raises(CheckpointError, match="look up an attribute"):
        read_archive(folder / STATES)


def test_code_in_a_checkpoint_does_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it_ran"
    torch.save({"module": Payload(mark)}, folder / STATES)
    with pytest.raises(CheckpointError, match=r"would load 'posix\.mkdir'"):
        check_pickles(folder, files_of(folder))
    with known_classes_only(), pytest.raises(Exception, match="Weights only"):
        torch.load(folder / STATES, weights_only=False)  # as DeepSpeed does
    assert not mark.exists()
    torch.load(folder / STATES, weights_only=False)
    assert mark.exists(), "this payload does nothing anyway"


def test_a_cut_file_is_named(folder: Path) -> None:
    content = (folder / STATES).read_bytes()
    for length in (0, 3, len(content) // 2, len(content) - 10):
        (folder / STATES).write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model_states\.pt: is damaged or cut short"):
            check_pickles(folder, files_of(folder))


def test_checksums_are_those_of_sha256sum(folder: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    assert list(read_checksums(folder) or {}) == [STATES, "rng_state_0.pth", "trainer_state.json"]


@contextmanager
def refused(folder: Path, what: str) -> Iterator[None]:
    sums = read_checksums(folder)
    assert sums is not None
    check_checksums(folder, sums)
    yield
    # `checkpoint verify`, which has no --no-verify, says so too.
    with pytest.raises(CheckpointError, match=rf"{what}.*'zerokit train' .* --no-verify"):
        check_checksums(folder, sums)


def test_a_flipped_byte_is_seen(folder: Path) -> None:
    with refused(folder, r"model_states\.pt: has changed since it was saved"):
        content = bytearray((folder / STATES).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / STATES).write_bytes(content)


def test_a_missing_file_is_seen(folder: Path) -> None:
    with refused(folder, r"rng_state_0\.pth: is missing"):
        (folder / "rng_state_0.pth").unlink()


def test_a_device_is_not_read(folder: Path) -> None:
    with refused(folder, r"rng_state_0\.pth: is a device, not a regular file"):
        (folder / "rng_state_0.pth").unlink()
        (folder / "rng_state_0.pth").symlink_to("/dev/zero")


def test_a_checkpoint_without_checksums_has_none(tmp_path: Path) -> None:
    assert read_checksums(tmp_path) is None
    assert complete_checksums(tmp_path) is None
    (tmp_path / "zerokit_run.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has lost its SHA256SUMS.*--no-verify"):
        complete_checksums(tmp_path)


def test_lines_that_sha256sum_writes_are_read(folder: Path) -> None:
    expected = read_checksums(folder)
    for words in (["sha256sum"], ["sha256sum", "--binary"]):
        names = [f"./{name}" for name in files_of(folder)]
        written = subprocess.run([*words, *names], cwd=folder, check=True, capture_output=True, text=True)
        (folder / "SHA256SUMS").write_text(written.stdout.replace("\n", "\r\n") + "\n")
        assert complete_checksums(folder) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "is malformed"),
        ("0" * 64, "is malformed"),
        (f"{'0' * 63}  a", "is malformed"),
        (f"{'0' * 64}  ", "is malformed"),
        (f"{'0' * 64}  ../a", "names '../a', which is outside the checkpoint's folder"),
        (f"{'0' * 64}  b/../../a", "names 'b/../../a', which is outside the checkpoint's folder"),
        (f"{'0' * 64}  /a", "names '/a', which is outside the checkpoint's folder"),
        (f"{'0' * 64}  ./rng_state_0.pth", "names 'rng_state_0.pth' twice"),
    ],
)
def test_a_line_that_is_no_checksum_is_named(line: str, message: str, folder: Path) -> None:
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(CheckpointError) as caught:
        read_checksums(folder)
    assert str(caught.value).startswith(f"{folder / 'SHA256SUMS'}:5: {message}")


@pytest.mark.parametrize("recorded", [False, True])
def test_a_file_without_a_line_is_named(recorded: bool, folder: Path) -> None:
    """Also of earlier versions, which did not record how many files were saved."""
    names = [name for name in files_of(folder) if name != STATES]
    if recorded:
        (folder / "zerokit_run.json").write_text("{}")
        assert record_num_files(folder, 4).keys() == {"zerokit_run.json"}
        names.append("zerokit_run.json")
    write_checksums(folder, checksums(folder, names))
    message = f"has lines for {len(names)} of {len(names) + 1} files, and none for '{STATES}'"
    with pytest.raises(CheckpointError, match=message):
        complete_checksums(folder)
    if recorded:
        (folder / STATES).unlink()
        with pytest.raises(CheckpointError, match=r"SHA256SUMS: has lines for 3 of 4 files\. "):
            complete_checksums(folder)


def test_a_file_that_was_added_needs_no_line(folder: Path) -> None:
    (folder / "zerokit_run.json").write_text("{}")
    record_num_files(folder, 4)
    write_checksums(folder, checksums(folder, files_of(folder)))
    (folder / "notes.txt").touch()
    assert "notes.txt" not in (complete_checksums(folder) or {})


@pytest.mark.parametrize("kind", ["folder", "pipe", "zeros", "not UTF-8"])
def test_checksums_that_cannot_be_read_are_named(kind: str, folder: Path) -> None:
    file = folder / "SHA256SUMS"
    file.unlink()
    makes: dict[str, Callable[[], object]] = {
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "zeros": lambda: file.write_bytes(bytes(1000)),
        "not UTF-8": lambda: file.write_bytes(b"\xff"),
    }
    makes[kind]()
    with pytest.raises(CheckpointError, match=r"SHA256SUMS(:1)?: is .*--no-verify"):
        complete_checksums(folder)


@pytest.mark.parametrize("name", ["../private", "/etc/hostname", "/proc/kmsg"])
def test_checksums_are_of_files_of_the_folder(name: str, folder: Path) -> None:
    (folder.parent / "private").touch()
    with pytest.raises(CheckpointError, match=r"leads out of its folder|is made up by the kernel"):
        check_checksums(folder, {name: "0" * 64})


def test_a_pipe_for_checksums_is_not_waited_for(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    os.mkfifo(folder / "SHA256SUMS")
    with pytest.raises(CheckpointError, match="SHA256SUMS: is a pipe"):
        read_checksums(folder)

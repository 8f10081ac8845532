"""What a reshard refuses, in one line, and leaves nothing of; what it copies; that what it writes is read."""

from __future__ import annotations

import collections
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from tests import processes
from tests.checkpoint.small import MODEL, save_checkpoint, save_stage_2, save_stage_3
from tests.cli import conftest
from tests.validation.launched.damage import rewrite
from zerokit.checkpoint import output_folder
from zerokit.checkpoint.checksums import check_checksums, checksums, complete_checksums, files_of, write_checksums
from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.element_reader import ElementReader
from zerokit.checkpoint.reshard import reshard
from zerokit.checkpoint.torch_file import read_archive
from zerokit.checkpoint.torch_file_writer import make_pickle, write_archive
from zerokit.errors import CheckpointError

zerokit = conftest.zerokit
OPTIMIZER = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def with_moments(folder: Path) -> Path:
    """A checkpoint of stage 3 with what Adam keeps; the folder."""
    save_stage_3(folder, {}, {})
    for rank in range(2):
        rewrite(OPTIMIZER.format(rank), add_moments)(folder)
    return folder


def add_moments(content: Any) -> None:
    states = content["optimizer_state_dict"]
    part = states["fp32_flat_groups"][0]
    kept = {"step": torch.tensor(1.0), "exp_avg": part * 2, "exp_avg_sq": part * 3}
    groups = [{"lr": 0.1, "params": [0]}]
    states["optimizer_state_dict"] = {"state": {0: kept}, "param_groups": groups}


def test_an_archive_is_written_as_it_was_read(tmp_path: Path) -> None:
    weight = torch.randn(3, 4)
    shared: Any = ["one of " * 9]
    for _ in range(40):  # written out each time, it would fill every disk
        shared = [shared, (shared, shared)]
    ordered: Any = collections.OrderedDict(x=1, y=[1, (3, None, True)])
    ordered._metadata = {"version": 2}
    saved = {
        "weight": weight,
        "tied": weight,
        "turned": weight.t()[1:],
        "half": torch.randn(5).bfloat16(),
        "empty": torch.zeros(0),
        "one": torch.tensor(3.0),
        "shape": torch.Size([3, 4]),
        "scaler": LossScaler(2.0),
        "stage": ZeroStageEnum.weights,
        "ordered": ordered,
        "random": np.random.default_rng(0).integers(9, size=3),
        "many": collections.defaultdict(list, {1: [2]}),
        "large": 1 << 70,
        "shared": shared,
        "bytes": b"abc",
    }
    (tmp_path / "again").mkdir()
    again = tmp_path / "again/x_states.pt"
    torch.save(saved, tmp_path / "x_states.pt")
    archive = read_archive(tmp_path / "x_states.pt")
    with ElementReader() as reader:
        write_archive(again, make_pickle(archive.content), reader)
    assert read_archive(again).saved_as == archive.saved_as
    for mapped in (False, True):
        found = torch.load(again, weights_only=False, mmap=mapped)
        assert list(found) == list(saved)
        for name, value in saved.items():
            assert type(found[name]) is type(value), name
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[name], value), name
            elif isinstance(value, np.ndarray):
                assert (found[name] == value).all()
            elif isinstance(value, LossScaler):
                assert vars(found[name]) == vars(value)
            elif name == "shared":
                assert found[name][0] is found[name][1][0] is found[name][1][1]
            else:
                assert found[name] == value
        assert found["tied"].data_ptr() == found["weight"].data_ptr()
        assert found["ordered"]._metadata == {"version": 2}


def test_a_content_that_holds_itself_is_written_as_such(tmp_path: Path) -> None:
    content: dict[str, Any] = {}
    content["again"] = content
    torch.save(content, tmp_path / "x.pt")
    found = pickle.loads(make_pickle(read_archive(tmp_path / "x.pt").content).content)
    assert found["again"] is found


def test_a_pickle_is_the_same_beside_dill() -> None:
    """datasets imports dill, which replaces methods of Python's pickler."""
    program = """
from collections import OrderedDict
from zerokit.checkpoint.torch_file_writer import make_pickle
content = {"a": [1, 2.5, None, True, "s", b"x", (1,), OrderedDict(a=1)], "type": bytes}
print(make_pickle(content).content.hex())
"""
    plain, beside = (processes.checked([sys.executable, "-c", before + program]) for before in ("", "import dill\n"))
    assert beside == plain


def test_an_object_without_a_name_in_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its pickle contains a PosixPath"):
        make_pickle({"file": tmp_path})


def _elastic(folder: Path) -> Path:
    save_stage_2(folder, torch.arange(4.0), [4])
    rewrite(OPTIMIZER.format(0), lambda content: content["optimizer_state_dict"].update(base_optimizer_state=[{}]))(
        folder
    )
    return folder


def _of_ranks(folder: Path) -> Path:
    with_moments(folder)
    for rank in range(2):
        rewrite(
            OPTIMIZER.format(rank),
            lambda content: content["optimizer_state_dict"]["optimizer_state_dict"]["state"][0].update(
                worker_error=torch.zeros(9)
            ),
        )(folder)
    return folder


def _sub_groups(folder: Path) -> Path:
    with_moments(folder)
    for rank in range(2):
        rewrite(
            f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
            lambda content: content.update(
                ds_config={"zero_optimization": {"sub_group_size": 1}},
                param_shapes=[{"weight": torch.Size([4, 1]), "other": torch.Size([4, 1])}],
            ),
        )(folder)
    return folder


def _universal(folder: Path) -> Path:
    save_checkpoint(folder)
    (folder / "zero").mkdir()
    return folder


def _evil(folder: Path) -> Path:
    with_moments(folder)
    rewrite(OPTIMIZER.format(1), lambda content: content.update(more=print))(folder)
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (save_checkpoint, "is not partitioned: it was saved without ZeRO. Any number of ranks can resume from it"),
        (_elastic, "was saved with elastic_checkpoint"),
        (_of_ranks, "has optimizer states 'worker_error' that depend on the number of ranks"),
        (_sub_groups, r"does not match its sub_group_size \(1\)"),
        (_universal, "is a universal checkpoint. Any number of ranks can load it"),
        (_evil, "its pickle would load 'builtins.print'"),
    ],
)
def test_what_cannot_be_divided_anew_is_named_and_nothing_is_left(
    make: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "global_step1")
    with pytest.raises(CheckpointError, match=message) as caught:
        reshard(tmp_path / "global_step1", tmp_path / "new", num_ranks=3)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["global_step1"]


@pytest.mark.parametrize(
    ("written", "order"), [("auto", "abcd"), ("false", "abcd"), (True, "acbd")], ids=["auto", "text", "true"]
)
def test_settings_are_read_as_deepspeed_reads_them(written: object, order: str, tmp_path: Path) -> None:
    """Of parameters in turns, rank 0 of two has the first and the third."""
    lengths = {name: 2 * number for number, name in enumerate("abcd", 1)}
    flat = torch.cat([torch.full((lengths[name],), float(ord(name))) for name in order])
    step = tmp_path / "global_step1"
    for rank, part in enumerate(flat.chunk(2)):
        save_stage_2(tmp_path / f"{rank}" / "global_step1", part, [len(part)])
        step.mkdir(exist_ok=True)
        file = tmp_path / f"{rank}/global_step1" / OPTIMIZER.format(0)
        saved = torch.load(file, weights_only=False)["optimizer_state_dict"]
        inner = {"state": {0: {"exp_avg": part.clone()}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        saved |= {"partition_count": [2], "base_optimizer_state": inner}
        torch.save({"optimizer_state_dict": saved}, step / OPTIMIZER.format(rank))
    zero = {"stage": 2, "round_robin_gradients": written, "sub_group_size": "auto"}
    states = {
        "module": {name: torch.full((length,), float(ord(name))) for name, length in lengths.items()},
        "param_shapes": [{name: torch.Size([lengths[name]]) for name in order}],
        "dp_world_size": 2,
        "global_steps": 1,
        "ds_config": {"zero_optimization": zero},
    }
    torch.save(states, step / MODEL)
    reshard(step, tmp_path / "new", num_ranks=1)
    states = torch.load(tmp_path / "new/global_step1" / OPTIMIZER.format(0), weights_only=False)
    (whole,) = states["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    assert "".join(map(chr, map(int, whole.unique_consecutive()))) == "abcd"


def test_the_needed_space_is_printed_and_checked_first(
    tmp_path: Path, zerokit: conftest.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_moments(tmp_path / "run/global_step1")
    words = ("checkpoint", "reshard", tmp_path / "run", "--num-gpus", 3, "-o", tmp_path / "new")
    with monkeypatch.context() as patched:
        patched.setattr(
            output_folder.shutil,
            "disk_usage",
            lambda folder: type("Usage", (), {"free": 100}),  # type: ignore[attr-defined]
        )
        code, _, err = zerokit(*words)
    assert code == 2
    assert "and the disk has 100 B left. Make room" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    code, out, err = zerokit(*words, "--format", "json")
    report = json.loads(out)
    assert (code, report["num_ranks"], report["num_files"], report["stage"]) == (0, 3, 7, 3)
    assert err.startswith(f"{tmp_path / 'new'} takes ")
    assert report["nbytes"] == sum(file.stat().st_size for file in (tmp_path / "new").rglob("*") if file.is_file())
    code, _, err = zerokit(*words)
    assert (code, "exists. Name a folder that does not exist yet" in err) == (2, True)


def test_the_rest_of_a_checkpoint_of_the_trainer_goes_with_it(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-1"
    with_moments(checkpoint / "global_step1")
    for name in ("trainer_state.json", "latest", "rng_state_0.pth", "rng_state_1.pth"):
        (checkpoint / name).write_text("global_step1" if name == "latest" else "")
    (checkpoint / "additional_chat_templates").mkdir()
    (checkpoint / "additional_chat_templates/tool.jinja").write_text("")
    (tmp_path / "checkpoint-2").mkdir()
    for file in checkpoint.glob("rng_state*"):
        torch.save({}, file)
    (checkpoint / "zerokit_run.json").write_text('{"num_files": 9}')
    write_checksums(checkpoint, checksums(checkpoint, files_of(checkpoint)))
    reshard(checkpoint, tmp_path / "new", num_ranks=1)
    files = {file.relative_to(tmp_path / "new").as_posix() for file in (tmp_path / "new").rglob("*")}
    assert files - {"global_step1"} == {
        "trainer_state.json",
        "latest",
        "SHA256SUMS",
        "zerokit_run.json",
        "rng_state.pth",
        "additional_chat_templates",
        "additional_chat_templates/tool.jinja",
        "global_step1/zero_pp_rank_0_mp_rank_00_model_states.pt",
        f"global_step1/{OPTIMIZER.format(0)}",
    }
    named = (tmp_path / "new/SHA256SUMS").read_text().splitlines()
    assert len(named) == len(files) - 3  # itself and two folders
    check_checksums(tmp_path / "new", complete_checksums(tmp_path / "new") or {"SHA256SUMS": ""})
    assert json.loads((tmp_path / "new/zerokit_run.json").read_text()) == {"num_files": len(named)}
    checkpoint_of_one = read_checkpoint(tmp_path / "new")
    assert checkpoint_of_one.facts.num_ranks == 1
    states = torch.load(tmp_path / "new/global_step1" / OPTIMIZER.format(0), weights_only=False)
    kept = states["optimizer_state_dict"]["optimizer_state_dict"]["state"][0]
    assert torch.equal(kept["exp_avg_sq"], torch.arange(8.0) * 3)


@pytest.mark.parametrize(
    ("source", "output", "line"),
    [
        ("run", "new", "engine.load_checkpoint('{}/new')"),
        ("run/global_step1", "new", "engine.load_checkpoint('{}/new')"),
        ("run/global_step1", "new/global_step1", "engine.load_checkpoint('{}/new')"),
        ("run", "new/global_step1", "engine.load_checkpoint('{}/new')"),
        ("run", "run/global_step1_on_3", "engine.load_checkpoint('{}/run/global_step1_on_3')"),
        ("run", "run/global_step7", "engine.load_checkpoint('{}/run', tag='global_step7')"),
        ("run/best", "new/best", "engine.load_checkpoint('{}/new')"),
        ("checkpoint-1", "new/checkpoint-1", "trainer.train(resume_from_checkpoint='{}/new/checkpoint-1')"),
        ("checkpoint-1", "new/global_step1", "engine.load_checkpoint('{}/new')"),
        ("zerokit/checkpoint-1", "new", "zerokit train --recipe RECIPE --resume {}/new"),
        ("accelerate", "new", "accelerator.load_state('{}/new')"),
    ],
)
def test_the_command_ends_with_the_line_that_loads_the_checkpoint(
    source: str, output: str, line: str, tmp_path: Path, zerokit: conftest.Run
) -> None:
    for step in ("run/global_step1", "run/best", "checkpoint-1/global_step1", "accelerate/pytorch_model"):
        with_moments(tmp_path / step)
        (tmp_path / step).with_name("latest").write_text("global_step1")
    (tmp_path / "accelerate/latest").unlink()
    (tmp_path / "checkpoint-1/trainer_state.json").write_text("{}")
    shutil.copytree(tmp_path / "checkpoint-1", tmp_path / "zerokit/checkpoint-1")
    of_zerokit = tmp_path / "zerokit/checkpoint-1"
    (of_zerokit / "zerokit_run.json").write_text('{"num_files": 6}')
    write_checksums(of_zerokit, checksums(of_zerokit, files_of(of_zerokit)))
    (tmp_path / output).parent.mkdir(exist_ok=True)
    code, out, err = zerokit("checkpoint", "reshard", tmp_path / source, "--num-gpus", 3, "-o", tmp_path / output)
    assert code == 0, err
    assert (code, out.splitlines()[-1]) == (0, f"load it with: {line.format(tmp_path)}")
    named = re.search(r"tag='(.*)'", line)
    folder = Path(re.search(r"(/[^']*)", line.format(tmp_path))[1])
    step = folder / (named[1] if named else (folder / "latest").read_text())
    assert (step / OPTIMIZER.format(2)).is_file()
    assert (tmp_path / "run/latest").read_text() == "global_step1"

"""Checkpoints of real runs on two ranks: their models are the trained ones, and damage has a name."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScalerBase
from safetensors.torch import load_file, save_file

from tests.cli import conftest
from tests.combinations import REST
from tests.launched.checkpoint_runs import RUNS
from tests.tiny import REPOSITORY, launch
from tests.validation.launched.damage import CASES, MODEL, OPTIMIZER, OPTIMIZER_BF16, Case, put, rewrite
from tests.validation.launched.damaged_checkpoints import PAYLOADS, PLACES, STEP, damaged, hostile, save_runs
from zerokit.checkpoint.compare import compare
from zerokit.checkpoint.export import export
from zerokit.checkpoint.prune import plan_pruning
from zerokit.checkpoint.reshard import reshard
from zerokit.checkpoint.verify import verify
from zerokit.errors import CheckpointError

zerokit = conftest.zerokit
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, None: torch.float32}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of `RUNS`."""
    folder = tmp_path_factory.mktemp("saved")
    save_runs(folder)
    return folder


def truth(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of a run in float32, as DeepSpeed's engine had it, by the name that an export gives it."""
    whole = load_file(folder / "truth-0.safetensors")
    divided = RUNS[folder.name].get("divided")
    if divided == "pipeline":
        return whole | load_file(folder / "truth-1.safetensors")
    if divided == "tensors":
        from transformers import AutoConfig, AutoModelForCausalLM

        shapes = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).state_dict()
        others = load_file(folder / "truth-1.safetensors")
        return {name: _joined(one, others[name], shapes[name].shape) for name, one in whole.items()}
    experts = "moe.deepspeed_moe.experts.deepspeed_experts."
    for name, tensor in load_file(folder / "truth-1.safetensors").items():
        if name.startswith(experts):  # of which rank 1 has the second half
            number, rest = name.removeprefix(experts).split(".")
            whole[f"{experts}{int(number) + 2}.{rest}"] = tensor
    if folder.name.startswith("adapter"):
        whole = {name: tensor for name, tensor in whole.items() if ".default." in name}
    return {name.replace(".default.", ".").replace(".modules_to_save.", "."): tensor for name, tensor in whole.items()}


def _joined(first: torch.Tensor, second: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The tensor that two tensor-parallel ranks have, each a part or the same."""
    if first.shape == shape:
        assert torch.equal(first, second)
        return first
    axis = next(axis for axis, size in enumerate(shape) if first.shape[axis] != size)
    return torch.cat([first, second], axis)


@pytest.mark.parametrize("name", RUNS)
def test_an_export_has_the_trained_weights(name: str, saved: Path, tmp_path: Path) -> None:
    run = RUNS[name]
    verify(saved / name)
    weights = {}
    for dtype in (None, "fp32"):
        export(saved / name, tmp_path / f"{dtype}", dtype=dtype, needs_config=name not in ("experts", "pipeline"))
        (file,) = (tmp_path / f"{dtype}").glob("*.safetensors")
        weights[dtype] = load_file(file)
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=file.parent, check=True)
    expected = truth(saved / name)
    assert weights["fp32"].keys() == weights[None].keys() == expected.keys()
    for key, tensor in expected.items():
        computed = tensor.to(DTYPES[run["precision"]]) if key != "scale" else tensor.long()
        assert torch.equal(weights[None][key], computed), key
        kept = tensor if name != "experts" else weights["fp32"][key]  # whose float32 no rank has whole
        assert torch.equal(weights["fp32"][key], kept if key != "scale" else computed), key


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run["stage"] and run.get("compared", True)])
def test_an_export_is_that_of_zero_to_fp32(name: str, saved: Path, tmp_path: Path) -> None:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    theirs = get_fp32_state_dict_from_zero_checkpoint(str(saved / name))
    if RUNS[name].get("tied"):
        assert theirs.pop("lm_head.weight") is theirs["model.embed_tokens.weight"]
    export(saved / name, tmp_path / "ours", dtype="fp32")
    ours = load_file(tmp_path / "ours/model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key].float()) for key in ours)


def test_transformers_and_peft_load_an_export(saved: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    export(saved / "stage3", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    trained = truth(saved / "stage3")["model.norm.weight"]
    assert torch.equal(model.model.norm.weight, trained.bfloat16())

    export(saved / "adapter", tmp_path / "adapter", dtype="fp32")
    base = AutoModelForCausalLM.from_pretrained(saved / "adapter/base")
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter")
    trained = truth(saved / "adapter")["base_model.model.lm_head.weight"]
    assert torch.equal(adapted.base_model.model.lm_head.modules_to_save["default"].weight, trained)
    got = {key.replace(".default", "") for key in adapted.state_dict() if ".lora_" in key}
    assert got < load_file(tmp_path / "adapter/adapter_model.safetensors").keys()


def test_a_universal_checkpoint_is_that_it_was_made_of(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.checkpoint import ds_to_universal

    universal = saved / "universal/global_step2_universal"
    folders = ["--input_folder", str(saved / "stage3" / STEP), "--output_folder", str(universal)]
    monkeypatch.setattr(sys, "argv", ["", *folders, "--num_extract_workers=1", "--num_merge_workers=1"])
    ds_to_universal.main(ds_to_universal.parse_arguments())
    for path in (saved / "stage3", saved / "universal"):
        export(path, tmp_path / path.name, base=saved / "stage3")
    files = [tmp_path / name / "model.safetensors" for name in ("stage3", "universal")]
    ours, theirs = map(load_file, files)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    (universal / "zero/model.norm.weight/fp32.pt").unlink()
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight/fp32\.pt: cannot be read: No such file"):
        verify(saved / "universal")


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run["stage"] and name != "experts"])
def test_resharding_there_and_back_gives_the_files_that_deepspeed_saved(
    name: str, saved: Path, tmp_path: Path
) -> None:
    stage, divided = RUNS[name]["stage"], RUNS[name].get("divided")
    if divided:
        with pytest.raises(CheckpointError, match="divided among 2 ranks; 3 is no multiple"):
            reshard(saved / name, tmp_path / "three", num_ranks=3)
    reshard(saved / name, tmp_path / "three", num_ranks=4 if divided else 3)
    verify(tmp_path / "three")
    reshard(tmp_path / "three", tmp_path / "two", num_ranks=2)
    files = sorted((saved / name / STEP).iterdir())
    assert [file.name for file in sorted((tmp_path / "two" / STEP).iterdir())] == [file.name for file in files]
    for file in files:
        same_object(torch.load(tmp_path / "two" / STEP / file.name, weights_only=False), file)
    if divided:
        with pytest.raises(CheckpointError, match="has a model that is divided among ranks"):
            reshard(saved / name, tmp_path / "other", num_ranks=2, stage=3)
        return
    if "fp32-gradients" in name:
        with pytest.raises(CheckpointError, match="was saved by DeepSpeed's BF16_Optimizer"):
            reshard(saved / name, tmp_path / "other", num_ranks=3, stage=3)
        return
    reshard(saved / name, tmp_path / "other", num_ranks=3, stage=5 - max(stage, 2))
    verify(tmp_path / "other")
    for path in (saved / name, tmp_path / "other"):
        export(path, tmp_path / f"{path.name}-model", dtype="fp32", base=saved / name)
    assert not list(compare(tmp_path / f"{name}-model", tmp_path / "other-model"))


def same_object(ours: Any, theirs: Any) -> None:
    """Compare what two archives hold."""
    theirs = torch.load(theirs, weights_only=False) if isinstance(theirs, Path) else theirs
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            same_object(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            same_object(*pair)
    elif isinstance(ours, LossScalerBase):
        assert vars(ours) == vars(theirs)
    else:
        assert ours == theirs


def test_training_goes_on_with_another_number_of_ranks_and_another_stage(saved: Path, tmp_path: Path) -> None:
    wanted = {"stage2-offload": None, "stage2-offload:3": 3, "stage3-offload": None, "stage3-offload:1": 1}
    for name, stage in wanted.items():
        run = saved / name.partition(":")[0]
        # Of the step folder or of its parent, into a folder for each, or into a step folder.
        source, output = (run, tmp_path / name) if stage is None else (run / STEP, tmp_path / name / STEP)
        output.parent.mkdir(exist_ok=True)
        line = reshard(source, output, num_ranks=3, stage=stage).load
        (tmp_path / name / "load.txt").write_text(line)
    script = REPOSITORY / "tests/launched/go_on.py"
    done = launch([script, tmp_path, *wanted], ranks=3, launcher="none", env={"PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 0, done.stderr
    for name in wanted:
        without = json.loads((saved / name.partition(":")[0] / "losses.json").read_text())
        assert json.loads((tmp_path / name / "losses.json").read_text()) == pytest.approx(without, abs=1e-5)


def test_an_interrupted_export_goes_on(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerokit.checkpoint import export as module

    monkeypatch.setattr(module, "SHARD_BYTES", 2000)
    write = module.write_safetensors
    written = []

    def interrupted(file: Path, *arguments: Any) -> str:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(file.name)
        return write(file, *arguments)

    monkeypatch.setattr(module, "write_safetensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(saved / "stage2", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(module, "write_safetensors", write)
    assert export(saved / "stage2", tmp_path / "model").kept == 2
    index = json.loads((tmp_path / "model/model.safetensors.index.json").read_text())
    shards = {file.name: load_file(file) for file in (tmp_path / "model").glob("*.safetensors")}
    assert {name: file for file, tensors in shards.items() for name in tensors} == index["weight_map"]
    assert index["weight_map"].keys() == truth(saved / "stage2").keys()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_damage_is_named_and_nothing_is_exported(case: Case, saved: Path, tmp_path: Path) -> None:
    assert damaged(case, saved, tmp_path)["wrong"] == []


# All of them in one place, and one in all places.
HOSTILE = [
    pytest.param(where, name, marks=() if where == next(iter(PLACES)) or name == "os.system" else REST)
    for where in PLACES
    for name in PAYLOADS
]


@pytest.mark.parametrize(("where", "name"), HOSTILE)
def test_code_in_a_checkpoint_is_named_and_not_run(where: str, name: str, saved: Path, tmp_path: Path) -> None:
    assert hostile(name, where, saved, tmp_path)["wrong"] == []


def test_the_command_line_shows_what_is_there_and_what_is_missing(
    saved: Path, tmp_path: Path, zerokit: conftest.Run
) -> None:
    code, out, err = zerokit("checkpoint", "show", saved / "stage3", "--format", "json")
    said = json.loads(out)
    tensors = {tensor["name"]: tensor for tensor in said.pop("tensors")}
    assert (code, err) == (0, "")
    assert tensors.keys() == truth(saved / "stage3").keys()
    assert tensors["model.norm.weight"] == {"name": "model.norm.weight", "dtype": "float32", "shape": [12]}
    known = {"complete": True, "zero_stage": 3, "world_size": 2, "step": 2, "dtype": "bfloat16", "adapter": False}
    assert said.items() >= known.items()
    assert said["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
    assert said["num_parameters"] == sum(math.prod(tensor["shape"]) for tensor in tensors.values())
    shutil.copytree(saved / "stage3", tmp_path / "run")
    (tmp_path / "run" / STEP / OPTIMIZER_BF16.format(1)).unlink()
    code, out, _ = zerokit("checkpoint", "show", tmp_path / "run")
    assert (code, out.count("ZeRO stage 3"), out.count("2 ranks, DeepSpeed")) == (1, 1, 1)
    assert "not complete" in out
    assert "lacks the optimizer states of 1 of 2 ranks: 1" in out
    code, out, err = zerokit("checkpoint", "export", tmp_path / "run", "-o", tmp_path / "model")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_weights_that_are_not_finite_are_the_answer_no(saved: Path, tmp_path: Path, zerokit: conftest.Run) -> None:
    shutil.copytree(saved / "stage0", tmp_path / "run")
    rewrite(MODEL, put(["module", "model.norm.weight"], lambda weight: weight * float("nan")))(tmp_path / "run" / STEP)
    code, out, _ = zerokit("checkpoint", "verify", tmp_path / "run")
    assert (code, out.splitlines()[1:]) == (1, ["not finite: model.norm.weight"])
    code, _, err = zerokit("checkpoint", "export", tmp_path / "run", "-o", tmp_path / "model")
    assert (code, err) == (0, "infinite or NaN elements: 1 tensor, such as 'model.norm.weight'\n")


def test_a_diff_names_each_tensor_and_how_far_it_is(saved: Path, tmp_path: Path, zerokit: conftest.Run) -> None:
    export(saved / "stage3", tmp_path / "model")
    assert zerokit("checkpoint", "diff", saved / "stage3", tmp_path / "model")[0] == 0
    weights = load_file(tmp_path / "model/model.safetensors")
    weights["model.norm.weight"][3] += 0.5
    weights["more"] = torch.ones(1)
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.ones(13, dtype=torch.bfloat16)
    del weights["model.embed_tokens.weight"]
    save_file(weights, tmp_path / "model/model.safetensors")
    code, out, _ = zerokit("checkpoint", "diff", saved / "stage3", tmp_path / "model", "--format", "json")
    found = {one["name"]: (one["what"], one["num_elements"], one["largest"]) for one in json.loads(out)["differences"]}
    assert code == 1
    assert found == {
        "model.embed_tokens.weight": ("only in A", 0, None),
        "model.layers.0.self_attn.q_proj.bias": ("shape", 0, None),
        "model.norm.weight": ("elements", 1, pytest.approx(0.5, abs=0.01)),
        "more": ("only in B", 0, None),
    }


def test_pruning_keeps_the_newest_complete_ones(saved: Path, tmp_path: Path, zerokit: conftest.Run) -> None:
    for step in (2, 9, 10, 30, 100):
        shutil.copytree(saved / "stage2" / STEP, tmp_path / f"checkpoint-{step}" / STEP)
        (tmp_path / f"checkpoint-{step}/latest").write_text(STEP)
    (tmp_path / "checkpoint-1").mkdir()  # of weights alone
    for step in (9, 100):  # the last is being written
        (tmp_path / f"checkpoint-{step}" / STEP / OPTIMIZER.format(1)).unlink()
    code, _, err = zerokit("checkpoint", "prune", tmp_path, "--keep", "2")
    assert code == 2
    assert re.search(r"would remove checkpoint-2, checkpoint-9 \(\d+\.\d+ KiB\)\. Add --yes", err)
    assert zerokit("checkpoint", "prune", tmp_path, "--keep", "2", "--yes")[0] == 0
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"checkpoint-1", "checkpoint-10", "checkpoint-30", "checkpoint-100"}
    shutil.rmtree(tmp_path / "checkpoint-10")
    shutil.rmtree(tmp_path / "checkpoint-30")
    with pytest.raises(CheckpointError, match="has no complete checkpoint, so none is removed"):
        plan_pruning(tmp_path, 1)

"""Checkpoints in 16 bits without ZeRO: the release decides where the optimizer's float32 weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoint.small import MODEL
from zerokit.checkpoint.export import export
from zerokit.checkpoint.saved_states import read_info
from zerokit.checkpoint.verify import verify
from zerokit.errors import CheckpointError

MASTER = torch.linspace(-1, 1, 20).reshape(5, 4)
RANKS = 2


def save(folder: Path, release: str, *, parts: bool, **states: Any) -> Path:
    """One of bf16 and stage 0, with or without what BF16_Optimizer saves of each rank; the folder."""
    folder.mkdir(parents=True)
    model: dict[str, Any] = {
        "module": {"weight": MASTER.bfloat16()},
        "param_shapes": [{"weight": MASTER.shape}],
        "dp_world_size": RANKS,
        "global_steps": 1,
        "ds_config": {"bf16": {"enabled": True}},
        "ds_version": release,
    }
    torch.save(model | states, folder / MODEL)
    for rank, part in enumerate(MASTER.flatten().chunk(RANKS) if parts else ()):
        optimizer = {
            "base_optimizer_state": {"state": {}, "param_groups": [{"params": [0]}]},
            "single_partition_of_fp32_groups": [part.clone()],
            "group_paddings": [0],
            "partition_count": [RANKS],
            "ds_version": release,
        }
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer, "ds_version": release}, folder / name)
    return folder


def config(*, stage: int, gradients: str = "bf16") -> dict[str, Any]:
    """What a run has of a ds_config."""
    zero = {"zero_optimization": {"stage": stage}}
    return {"ds_config": {**zero, "data_types": {"grad_accum_dtype": gradients}}}


def exported(run: Path, folder: Path, dtype: Any) -> tuple[torch.Tensor, Any]:
    """The one weight, and the notes."""
    notes = export(run, folder, dtype=dtype, needs_config=False).notes
    return load_file(folder / "model.safetensors")["weight"], notes


def test_releases_before_0_17_6_save_the_masters_in_parts(tmp_path: Path) -> None:
    run = save(tmp_path / "run/global_step1", "0.16.9", parts=True)
    verify(run)
    weight, notes = exported(run, tmp_path / "as it was", None)
    assert torch.equal(weight, MASTER.bfloat16())
    master, more = exported(run, tmp_path / "fp32", "fp32")
    assert torch.equal(master, MASTER)
    assert [*notes, *more] == []


@pytest.mark.parametrize(
    ("release", "states", "has_parts"),
    [
        ("0.14.5", {}, True),
        ("0.17.5", {}, True),
        ("0.17.6", {}, False),
        ("0.18.4+of.mine", {}, False),
        ("0.18.4", config(stage=1), True),
        ("0.18.4", config(stage=1, gradients="fp32"), False),
        ("0.18.4", config(stage=2, gradients="fp32"), True),
        ("0.18.5", config(stage=1, gradients="fp32"), True),
        ("0.19.8", {"param_shapes": None}, False),
    ],
)
def test_parts_are_missed_where_the_release_writes_them(
    release: str, states: dict[str, Any], has_parts: bool, tmp_path: Path
) -> None:
    run = save(tmp_path / "run/global_step1", release, parts=False, **states)
    assert read_info(run).stage == int(has_parts)
    if not has_parts:
        verify(run)
        return
    with pytest.raises(CheckpointError, match="lacks the optimizer states of 2 of 2 ranks"):
        exported(run, tmp_path / "model", "fp32")


@pytest.mark.parametrize("key", ["fp32_groups", "fp32_groups_flat"])
def test_masters_without_names_are_not_denied(key: str, tmp_path: Path) -> None:
    optimizer = {key: [[MASTER]] if key == "fp32_groups" else [MASTER.flatten()]}
    run = save(tmp_path / "run/global_step1", "0.19.8", parts=False, param_shapes=None, optimizer=optimizer)
    weight, notes = exported(run, tmp_path / "model", "fp32")
    assert torch.equal(weight, MASTER.bfloat16().float())
    assert notes == [
        "saved in 16 bits, beside float32 weights of the optimizer that have no names, and widened: "
        "1 tensor, such as 'weight'"
    ]
    experts = save(tmp_path / "experts/global_step1", "0.16.9", parts=True, param_shapes=None)
    assert exported(experts, tmp_path / "of experts", "fp32")[1] == notes
    nothing = save(tmp_path / "other/global_step1", "0.18.4", parts=False)
    assert exported(nothing, tmp_path / "another", "fp32")[1] == [
        "saved in 16 bits only, and widened: 1 tensor, such as 'weight'"
    ]

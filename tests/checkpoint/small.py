"""Checkpoints in the shape that DeepSpeed gives them, made without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

MODEL = "mp_rank_00_model_states.pt"


def save_checkpoint(folder: Path, *, step: int = 1, **module: torch.Tensor) -> Path:
    """Save a checkpoint of one rank without ZeRO with these tensors; return the folder."""
    folder.mkdir(parents=True)
    tensors = module or {"weight": torch.arange(20.0).reshape(4, 5)}
    torch.save({"module": tensors, "global_steps": step, "dp_world_size": 1}, folder / MODEL)
    return folder


def save_stage_3(folder: Path, *modules: dict[str, torch.Tensor]) -> Path:
    """Save a checkpoint with a rank for each of `modules`, its buffers, and a divided weight of 4 x 2."""
    folder.mkdir(parents=True)
    ranks = len(modules)
    for rank, module in enumerate(modules):
        states: dict[str, Any] = {
            "module": {"weight": torch.zeros(0), **module},
            "buffer_names": list(module),
            "param_shapes": [{"weight": torch.Size([4, 2])}],
            "dp_world_size": ranks,
            "global_steps": 1,
        }
        part = torch.arange(8.0).chunk(ranks)[rank].clone()
        optimizer = {"zero_stage": 3, "partition_count": ranks, "fp32_flat_groups": [part]}
        torch.save(states, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


def save_stage_2(folder: Path, weight: torch.Tensor, shape: list[int]) -> Path:
    """Save a checkpoint of one rank whose states record `shape` for the weight; return the folder."""
    folder.mkdir(parents=True)
    states: dict[str, Any] = {
        "module": {"weight": weight},
        "param_shapes": [{"weight": torch.Size(shape)}],
        "dp_world_size": 1,
        "global_steps": 1,
    }
    optimizer = {
        "zero_stage": 2,
        "partition_count": [1],
        "single_partition_of_fp32_groups": [weight.flatten().clone()],
    }
    torch.save(states, folder / MODEL)
    torch.save({"optimizer_state_dict": optimizer}, folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return folder

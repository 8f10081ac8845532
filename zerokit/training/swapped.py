"""The optimizer's states of a checkpoint, where they are swapped to NVMe: DeepSpeed leaves most of them out.

``DeepSpeedEngine.load_checkpoint`` of DeepSpeed 0.19 copies the swap files of master weights and moments, and
reads none of ``*_optim_states.pt`` (``if load_zero_checkpoint and not self.zero_nvme_offload_optimizer()``).
What is lost without a word: the optimizer's moments and its count of steps, which begin at zero; the master
weights of a group that is too small to be swapped, which are those that the run started from; the scale of
losses.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from zerokit.documents import shown
from zerokit.errors import CheckpointError
from zerokit.patches import PrivateAttribute

_STAGE_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_PURPOSE = "take the states of an optimizer on NVMe from a checkpoint"
for _name in (
    "_swappable_optimizer_subgroup",
    "_set_fp32_optimizer_param_groups",
    "_clear_fp32_optimizer_param_groups",
    "reset_swap_buffers",
):
    PrivateAttribute(_STAGE_3, _name, _PURPOSE)
PrivateAttribute("deepspeed.runtime.engine:DeepSpeedEngine", "_get_all_zero_checkpoints", _PURPOSE)
_END = ".tensor.swp"


def load_swapped_states(engine: Any, folder: Path) -> None:
    """Take from a checkpoint what the engine has left there; nothing where no optimizer is swapped.

    Args:
        engine: DeepSpeed's, which has loaded that checkpoint.
        folder: ``checkpoint-N``, with a file ``latest``.

    Raises:
        CheckpointError: it has no swap files of this rank's groups.
    """
    import torch

    if not engine.zero_nvme_offload_optimizer():
        return
    optimizer = engine.optimizer
    base, masters = optimizer.optimizer, optimizer.fp32_partitioned_groups_flat
    step = folder / (folder / "latest").read_text(encoding="utf-8").strip()
    saved = engine._get_all_zero_checkpoints(str(folder), step.name)[engine.global_rank]
    optimizer.checkpoint_event_prologue()
    optimizer.loss_scaler, optimizer.overflow = saved["loss_scaler"], saved["overflow"]
    optimizer._set_fp32_optimizer_param_groups()
    base.load_state_dict(saved["optimizer_state_dict"])
    optimizer._clear_fp32_optimizer_param_groups()
    swapped: dict[str, list[str]] = {}
    for group, (master, kept) in enumerate(zip(masters, saved["fp32_flat_groups"], strict=True)):
        if not optimizer._swappable_optimizer_subgroup(group):
            master.data.copy_(kept.data)
            continue
        size, state = optimizer.fp16_partitioned_groups_flat_numel[group], base.state[master]
        moments = [name for name, value in state.items() if torch.is_tensor(value) and not value.numel()]
        for name in moments:
            # By its size the swapper knows what to swap in; it makes room itself.
            state[name] = state[name].new_empty(1).expand(size)
        swapped[master.ds_id] = moments
    _put_files(step, engine, swapped)
    optimizer.optimizer_swapper.purge_state()
    optimizer.reset_swap_buffers()
    optimizer.checkpoint_event_epilogue()


def _put_files(step: Path, engine: Any, groups: dict[str, list[str]]) -> None:
    """Give swap files the names that this run's groups have, if it has numbered its parameters otherwise.

    A group is named by the numbers of its first and last parameter, which count from the first one that the
    process has made: another model before it shifts them all.

    Args:
        step: the checkpoint's folder ``global_stepN``, whose files the engine has copied under their names.
        engine: DeepSpeed's.
        groups: names of the moments of each group.

    Raises:
        CheckpointError: a file is missing.
    """
    rank = engine.local_rank if engine.use_node_local_storage() else engine.global_rank
    there = next(iter((step / "offloaded_tensors").glob(f"rank{rank:02d}")), step)
    saved = sorted(
        (file.name.removesuffix(_END) for file in there.glob(f"[0-9]*_*[0-9]{_END}")), key=_numbers
    )
    own = sorted(groups, key=_numbers)
    files = [
        (f"{kind}{old}{_END}", f"{kind}{new}{_END}")
        for old, new in zip(saved, own, strict=False)
        for kind in ("", *(f"{name}-" for name in groups[new]))
    ]
    lost = next((old for old, _ in files if not (there / old).is_file()), None)
    if len(saved) != len(own) or lost is not None:
        raise CheckpointError(
            f"has no file '{lost}' in {there.name}" if lost else f"has {len(saved)} groups, not {len(own)}",
            where=shown(step),
            hint="Go on with the ds_config and the versions that it was saved with",
        )
    folder = Path(engine.optimizer.optimizer_swapper.swap_folder)
    for old, new in files:
        if old != new:
            shutil.copyfile(there / old, folder / new)
    for old in {old for old, _ in files} - {new for _, new in files}:
        (folder / old).unlink(missing_ok=True)  # the next checkpoint would have it, too


def _numbers(name: str) -> list[int]:
    return [int(number) for number in name.split("_") if number.isdigit()]

"""Loads optimizer states on NVMe from a checkpoint; DeepSpeed loads only a part of them.

``DeepSpeedEngine.load_checkpoint`` of DeepSpeed 0.19 copies the swap files, and reads nothing of
``*_optim_states.pt`` (``if load_zero_checkpoint and not self.zero_nvme_offload_optimizer()``). So it silently
resets the moments and step count, the master weights of groups too small to be swapped, and the loss scale.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.checkpoint.step_folder import find_step_folder
from zerokit.distributed.group import RankGroup
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


def load_nvme_optimizer_states(engine: Any, folder: Path, group: RankGroup) -> None:
    """Load optimizer states on NVMe. CheckpointError on every rank if swap files are missing."""
    if not engine.zero_nvme_offload_optimizer():
        return
    optimizer = engine.optimizer
    step = find_step_folder(folder)
    saved = group.together(lambda: _own_part(engine, step))
    optimizer.checkpoint_event_prologue()
    optimizer.loss_scaler, optimizer.overflow = saved["loss_scaler"], saved["overflow"]
    optimizer.dynamic_loss_scale = saved["dynamic_loss_scale"]
    optimizer._set_fp32_optimizer_param_groups()
    optimizer.optimizer.load_state_dict(saved["optimizer_state_dict"])
    optimizer._clear_fp32_optimizer_param_groups()
    for number, kept in enumerate(saved["fp32_flat_groups"]):
        master = optimizer.fp32_partitioned_groups_flat[number]
        if not optimizer._swappable_optimizer_subgroup(number):
            master.data.copy_(kept.data)
            continue
        size, state = optimizer.fp16_partitioned_groups_flat_numel[number], optimizer.optimizer.state[master]
        for name in _swapped(state):
            # By its size the swapper knows what to swap in; it makes room itself.
            state[name] = state[name].new_empty(1).expand(size)
    optimizer.optimizer_swapper.purge_state()
    optimizer.reset_swap_buffers()
    optimizer.checkpoint_event_epilogue()


def _own_part(engine: Any, step: Path) -> Mapping[str, Any]:
    """This rank's part of the optimizer's states, with swap files renamed to those of the current groups.

    A group is named by the numbers of its first and last parameter among all that the process has created, so
    another model in the process shifts them. CheckpointError if a file is missing, or the groups differ.
    """
    optimizer = engine.optimizer
    parts = engine._get_all_zero_checkpoints(str(step.parent), step.name)
    saved: Mapping[str, Any] = parts[engine.global_rank]
    masters = optimizer.fp32_partitioned_groups_flat
    own = {
        number: master.ds_id
        for number, master in enumerate(masters)
        if optimizer._swappable_optimizer_subgroup(number)
    }
    rank = engine.local_rank if engine.use_node_local_storage() else engine.global_rank
    there = step / "offloaded_tensors" / f"rank{rank:02d}"
    found = {file.name.removesuffix(_END) for file in there.glob(f"[0-9]*_*[0-9]{_END}")}
    names = own
    if not found.issuperset(own.values()):
        by_place = sorted(own, key=lambda number: _numbers(own[number]))
        names = own | dict(zip(by_place, sorted(found, key=_numbers), strict=False))
    states = saved["optimizer_state_dict"]["state"]
    files = [
        (f"{kind}{names[number]}{_END}", f"{kind}{own[number]}{_END}")
        for number in own
        for kind in ("", *(f"{name}-" for name in _swapped(states.get(number, {}))))
    ]
    lost = next((old for old, _ in files if not (there / old).is_file()), None)
    if lost is not None or len(saved["fp32_flat_groups"]) != len(masters):
        raise CheckpointError(
            f"has no file '{lost}' in {there.name}" if lost else "has other groups of parameters than this run",
            where=step,
            hint="Go on with the ds_config and the versions that it was saved with",
        )
    folder = Path(optimizer.optimizer_swapper.swap_folder)
    for old, new in files:
        if old != new:
            shutil.copyfile(there / old, folder / new)
    for old in {old for old, _ in files} - {new for _, new in files}:
        (folder / old).unlink(missing_ok=True)  # the next checkpoint would have it, too
    return saved


def _swapped(state: Mapping[str, Any]) -> list[str]:
    """Moments of a group that are saved in swap files, recognized by empty tensors."""
    return [name for name, value in state.items() if getattr(value, "shape", None) == (0,)]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in name.split("_") if number.isdigit()]

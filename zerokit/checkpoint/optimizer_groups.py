"""What ZeRO's optimizer keeps of each group of parameters, put together from the parts of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from zerokit.checkpoint.master_weights import master_weights_stage_1_2, master_weights_stage_3
from zerokit.checkpoint.saved_states import shapes_of
from zerokit.checkpoint.torch_file import StoredTensor
from zerokit.documents import shown
from zerokit.errors import CheckpointError

if TYPE_CHECKING:
    from zerokit.checkpoint.saved_states import SavedStates
    from zerokit.checkpoint.tensors import NamedTensor

    Tensors = Mapping[str, NamedTensor]

ALIGNMENT = 2
"""Elements of which each rank's part of a group is a multiple (``nccl_start_alignment_factor``)."""


class ZeroSettings(BaseModel):
    """The keys of ``zero_optimization`` that decide where a parameter lies, read as DeepSpeed does.

    Its defaults are DeepSpeed's (runtime/zero/config.py).
    """

    round_robin_gradients: bool = False
    """Whether stages 1 and 2 have parameters in another order than the optimizer's."""
    parameter_alignment: bool = False
    sub_group_size: float = 1e9


@dataclass(frozen=True)
class Group:
    """Parameters that the optimizer treats alike, in its order."""

    weights: Tensors
    """What it updates, mostly in float32."""
    moments: Mapping[str, Tensors]
    """What it keeps of each element, by its own keys, such as ``exp_avg``."""
    others: Mapping[str, Any]
    """What it keeps once, such as ``step``."""


@dataclass(frozen=True)
class _Kept:
    """What ranks have of parameters that lie flat together."""

    shapes: Mapping[str, tuple[int, ...]]
    weights: Sequence[StoredTensor]
    """Of each rank."""
    states: Sequence[Mapping[str, Any]]
    """Of each rank, by keys of the optimizer."""
    numel: int
    """Of each rank's part of a moment."""


def read_groups(saved: SavedStates) -> list[Group]:
    """The groups of a checkpoint of ZeRO.

    Raises:
        CheckpointError: the optimizer keeps something in a form that is not divided by elements.
        ArithmeticError, LookupError, TypeError, ValueError, AttributeError: as of `as_deepspeed_saves`.
    """
    if saved.facts.stage == 3:
        flat = [_of_stage_3(saved, kept) for kept in _kept_of_stage_3(saved)]
        return [_merged([flat[number] for number in one]) for one in sub_groups(saved)]
    return [_of_stage_1_and_2(saved, *one) for one in enumerate(_kept_of_stage_1_and_2(saved))]


def round_robin_order(names: Sequence[Any], num_ranks: int) -> list[Any]:
    """The order in which ranks take turns (stage_1_and_2.py, `_round_robin_reorder`)."""
    return [name for rank in range(num_ranks) for name in names[rank::num_ranks]]


def zero_section(saved: SavedStates) -> Mapping[str, Any]:
    """The section ``zero_optimization`` of the run's ds_config."""
    return (saved.models[0].get("ds_config") or {}).get("zero_optimization") or {}


def zero_settings(saved: SavedStates) -> ZeroSettings:
    """What DeepSpeed takes from it: an "auto" that nobody has filled is no value (config_utils.py)."""
    given = {key: value for key, value in zero_section(saved).items() if value != "auto"}
    return ZeroSettings.model_validate(given)


def sub_groups(saved: SavedStates) -> list[list[int]]:
    """Of each group of stage 3, the numbers of its flat parts."""
    return [list(group["params"]) for group in saved.optimizers[0]["optimizer_state_dict"]["param_groups"]]


def _kept_of_stage_1_and_2(saved: SavedStates) -> Iterator[_Kept]:
    states = saved.optimizers
    paddings = states[0].get("param_alignment_paddings")
    if not isinstance(states[0]["base_optimizer_state"], Mapping):
        _refuse(saved, "was saved with elastic_checkpoint, which DeepSpeed has given up")
    for number, shapes in enumerate(shapes_of(saved.models[0])):
        total = sum(map(math.prod, shapes.values())) + (sum(paddings[number]) if paddings else 0)
        inner = [state["base_optimizer_state"] for state in states]
        yield _Kept(
            shapes,
            [state["single_partition_of_fp32_groups"][number] for state in states],
            [one["state"].get(one["param_groups"][number]["params"][0], {}) for one in inner],
            math.ceil(total / (ALIGNMENT * len(states))) * ALIGNMENT,
        )


def _kept_of_stage_3(saved: SavedStates) -> Iterator[_Kept]:
    states = saved.optimizers
    for number, shapes in enumerate(shapes_of(saved.models[0])):
        weights = [state["fp32_flat_groups"][number] for state in states]
        inner = [state["optimizer_state_dict"]["state"] for state in states]
        yield _Kept(shapes, weights, [one.get(number, {}) for one in inner], weights[0].numel)


def _of_stage_1_and_2(saved: SavedStates, number: int, kept: _Kept) -> Group:
    first = saved.optimizers[0]
    paddings = first.get("param_alignment_paddings")
    common = {
        "partition_count": len(saved.optimizers),
        "param_alignment_paddings": [paddings[number]] if paddings else None,
    }

    def put(parts: Sequence[StoredTensor]) -> Tensors:
        states = [{**common, "single_partition_of_fp32_groups": [part]} for part in parts]
        found = list(master_weights_stage_1_2([kept.shapes], states))
        if zero_settings(saved).round_robin_gradients:
            order = round_robin_order(range(len(found)), len(parts))
            found = [tensor for _, tensor in sorted(zip(order, found, strict=True), key=itemgetter(0))]
        return {tensor.name: tensor for tensor in found}

    return _group(saved, kept, put)


def _of_stage_3(saved: SavedStates, kept: _Kept) -> Group:
    def put(parts: Sequence[StoredTensor]) -> Tensors:
        states = [{"fp32_flat_groups": [part]} for part in parts]
        return {tensor.name: tensor for tensor in master_weights_stage_3([kept.shapes], states)}

    return _group(saved, kept, put)


def _group(saved: SavedStates, kept: _Kept, put: Callable[[Sequence[StoredTensor]], Tensors]) -> Group:
    """Sort what the optimizer keeps into that of each element, of all ranks, and what it keeps once."""
    moments: dict[str, list[StoredTensor]] = {}
    others: dict[str, Any] = {}
    for key, value in kept.states[0].items():
        values = [state[key] for state in kept.states]
        if not isinstance(value, StoredTensor):
            others[key] = value
        elif all(one.shape == (kept.numel,) and one.is_contiguous for one in values):
            moments[key] = values
        elif value.numel == 1:
            others[key] = value
        else:
            _refuse(saved, f"has an optimizer that keeps '{key}' in a form that belongs to its ranks")
    return Group(put(kept.weights), {key: put(parts) for key, parts in moments.items()}, others)


def _merged(groups: Sequence[Group]) -> Group:
    """Flat parts of one group."""
    return Group(
        {name: tensor for group in groups for name, tensor in group.weights.items()},
        {
            key: {name: tensor for group in groups for name, tensor in group.moments[key].items()}
            for key in groups[0].moments
        },
        groups[0].others,
    )


def _refuse(saved: SavedStates, problem: str) -> None:
    raise CheckpointError(
        problem, where=shown(saved.facts.folder), hint="Go on with as many ranks as saved it"
    )

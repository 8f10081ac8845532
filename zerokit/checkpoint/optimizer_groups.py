"""The parameter groups of ZeRO's optimizer, joined from the parts of all ranks."""

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
from zerokit.errors import CheckpointError

if TYPE_CHECKING:
    from zerokit.checkpoint.saved_states import SavedStates
    from zerokit.checkpoint.tensors import NamedTensor

    Tensors = Mapping[str, NamedTensor]

ALIGNMENT = 2
"""Each rank's part of a group has a multiple of this number of elements (``nccl_start_alignment_factor``)."""


class ZeroSettings(BaseModel):
    """Keys of ``zero_optimization`` that determine where a parameter is, with DeepSpeed's defaults.

    Source: runtime/zero/config.py.
    """

    round_robin_gradients: bool = False
    """Stages 1 and 2 reorder parameters."""
    parameter_alignment: bool = False
    sub_group_size: float = 1e9


@dataclass(frozen=True)
class Group:
    """A parameter group, in its order."""

    weights: Tensors
    """Master weights, mostly in float32."""
    moments: Mapping[str, Tensors]
    """States per element by the optimizer's keys, such as ``exp_avg``."""
    others: Mapping[str, Any]
    """States that exist once, such as ``step``."""


def read_groups(saved: SavedStates) -> list[Group]:
    """Read the groups of a ZeRO checkpoint.

    Raises:
        CheckpointError: the optimizer has states that are not partitioned by elements.
        ArithmeticError, LookupError, TypeError, ValueError, AttributeError: see
            :func:`explain_format_errors`.
    """
    if saved.facts.stage == 3:
        flat = list(_stage_3_parts(saved))
        return [_merged([flat[number] for number in one]) for one in sub_groups(saved)]
    return list(_stage_1_and_2_groups(saved))


def round_robin_order(names: Sequence[Any], num_ranks: int) -> list[Any]:
    """Round-robin order (stage_1_and_2.py, `_round_robin_reorder`)."""
    return [name for rank in range(num_ranks) for name in names[rank::num_ranks]]


def zero_section(saved: SavedStates) -> Mapping[str, Any]:
    """The section ``zero_optimization`` of the run's ds_config."""
    return (saved.models[0].get("ds_config") or {}).get("zero_optimization") or {}


def zero_settings(saved: SavedStates) -> ZeroSettings:
    """The settings as DeepSpeed reads them; an unfilled "auto" counts as absent (config_utils.py)."""
    given = {key: value for key, value in zero_section(saved).items() if value != "auto"}
    return ZeroSettings.model_validate(given)


def sub_groups(saved: SavedStates) -> list[list[int]]:
    """For each group of stage 3, the numbers of its flat parts."""
    return [list(group["params"]) for group in saved.optimizers[0]["optimizer_state_dict"]["param_groups"]]


def _stage_1_and_2_groups(saved: SavedStates) -> Iterator[Group]:
    states = saved.optimizers
    inner = [state["base_optimizer_state"] for state in states]
    if not isinstance(inner[0], Mapping):
        _refuse(saved, "was saved with elastic_checkpoint, which DeepSpeed no longer supports")
    paddings = states[0].get("param_alignment_paddings")
    is_round_robin = zero_settings(saved).round_robin_gradients
    for number, shapes in enumerate(shapes_of(saved.models[0])):
        common = {"partition_count": len(states), "param_alignment_paddings": [paddings[number]] if paddings else None}

        def join(parts: Sequence[StoredTensor], shapes: Any = shapes, common: Any = common) -> Tensors:
            of_ranks = [{**common, "single_partition_of_fp32_groups": [part]} for part in parts]
            found = list(master_weights_stage_1_2([shapes], of_ranks))
            if is_round_robin:
                order = round_robin_order(range(len(found)), len(parts))
                found = [tensor for _, tensor in sorted(zip(order, found, strict=True), key=itemgetter(0))]
            return {tensor.name: tensor for tensor in found}

        total = sum(map(math.prod, shapes.values())) + (sum(paddings[number]) if paddings else 0)
        yield _group(
            saved,
            [state["single_partition_of_fp32_groups"][number] for state in states],
            [one["state"].get(one["param_groups"][number]["params"][0], {}) for one in inner],
            math.ceil(total / (ALIGNMENT * len(states))) * ALIGNMENT,
            join,
        )


def _stage_3_parts(saved: SavedStates) -> Iterator[Group]:
    """Each flat part as a group."""
    states = saved.optimizers
    for number, shapes in enumerate(shapes_of(saved.models[0])):

        def join(parts: Sequence[StoredTensor], shapes: Any = shapes) -> Tensors:
            of_ranks = [{"fp32_flat_groups": [part]} for part in parts]
            return {tensor.name: tensor for tensor in master_weights_stage_3([shapes], of_ranks)}

        weights = [state["fp32_flat_groups"][number] for state in states]
        inner = [state["optimizer_state_dict"]["state"].get(number, {}) for state in states]
        yield _group(saved, weights, inner, weights[0].numel, join)


def _group(
    saved: SavedStates,
    weights: Sequence[StoredTensor],
    states: Sequence[Mapping[str, Any]],
    numel: int,
    join: Callable[[Sequence[StoredTensor]], Tensors],
) -> Group:
    """Separate the optimizer's states per element from those that exist once.

    Args:
        states: each rank's states by the optimizer's keys.
        numel: elements of each rank's part of a moment.
        join: makes named tensors of the parts of a flat buffer.
    """
    moments: dict[str, Tensors] = {}
    others: dict[str, Any] = {}
    for key, value in states[0].items():
        values = [state[key] for state in states]
        if not isinstance(value, StoredTensor):
            others[key] = value
        elif all(one.shape == (numel,) and one.is_contiguous for one in values):
            moments[key] = join(values)
        elif value.numel == 1:
            others[key] = value
        else:
            _refuse(saved, f"has optimizer states '{key}' that depend on the number of ranks")
    return Group(join(weights), moments, others)


def _merged(groups: Sequence[Group]) -> Group:
    """Merge the flat parts of one group."""
    return Group(
        {name: tensor for group in groups for name, tensor in group.weights.items()},
        {
            key: {name: tensor for group in groups for name, tensor in group.moments[key].items()}
            for key in groups[0].moments
        },
        groups[0].others,
    )


def _refuse(saved: SavedStates, problem: str) -> None:
    raise CheckpointError(problem, where=saved.facts.folder, hint="Resume on the number of ranks that saved it")

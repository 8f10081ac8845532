"""Sizes of buckets and buffers for a given model, and why each.

The Trainer and accelerate fill "auto" by the hidden size alone
(:data:`~zerokit.resolving.filled_keys.SIZE_RULES`). The rules here start from the same numbers and keep
them within bounds: a collective of less than :data:`BANDWIDTH_FLOOR` elements is ruled by its latency, and a
bucket larger than the model is memory for nothing.
"""

import math
from collections.abc import Iterator
from typing import Any

from zerokit.config.base import ZERO
from zerokit.models import ModelShape
from zerokit.resolving.filled_keys import FINALIZE, SIZE_RULES
from zerokit.resolving.nvme_buffers import FEWEST, WHY_MORE, NvmeBuffers
from zerokit.units import format_bytes, format_count
from zerokit.writing.hyperparameters import LEFT_OUT, Choice
from zerokit.writing.request import Decisions

BANDWIDTH_FLOOR = 2**24
"""Elements of the smallest bucket for a model that has as many: 32 MiB in 16 bits. PyTorch's
DistributedDataParallel, which weighs the same two things, takes 25 MiB (`bucket_cap_mb`)."""

LARGEST_BUCKET = 500_000_000
"""DeepSpeed's own default, which fits any card that is used."""

GPU_SHARE = 0.02
"""Of the GPU's memory, that one bucket may take when the memory is given."""

SUB_GROUP = 100_000_000
"""Elements that the optimizer updates at once: 0.4 GB in fp32, where DeepSpeed's default is 4 GB."""

_STAYS_IN_MEMORY = 1_000_000_000
"""DeepSpeed's default of `offload_param.max_in_cpu`. Not lowered here: with 0 the swapper of DeepSpeed 0.19.8
can read one parameter twice at once, and fails an assertion ("already assigned swap buffer")."""

_BYTES = 2
"""Of an element in 16 bits."""


_FILLING = f"{FINALIZE}; bounded by zerokit"


def bucket_choices(decisions: Decisions, model: ModelShape) -> Iterator[Choice]:
    """Sizes in `zero_optimization` for stages 1, 2 and 3."""
    hidden = model.hidden_size_for_trainer
    if hidden is None:
        why = "the model's config has no hidden size to go by; DeepSpeed's default"
        yield Choice((ZERO, "reduce_bucket_size"), LEFT_OUT, why, "deepspeed/runtime/zero/config.py")
    else:
        yield from _by_hidden_size(hidden, decisions, model)
    if decisions.zero_stage == 3:
        yield from _sub_group(decisions, model)


def _by_hidden_size(hidden: int, decisions: Decisions, model: ModelShape) -> Iterator[Choice]:
    for key, rule in SIZE_RULES.items():
        size = rule.elements(hidden)
        why = f"{rule.formula} = {format_count(size)}"
        if key == "stage3_param_persistence_threshold":
            why += ": norms and biases stay whole on every GPU"
        else:
            # By the same rule, of the square weight that is as large as the floor.
            floor = rule.elements(math.isqrt(BANDWIDTH_FLOOR))
            size, why = _bucket(size, why, floor, decisions, model)
        if decisions.zero_stage == 3 or not rule.stage_3_only:
            yield _choice(key, size, why)


def _bucket(size: int, why: str, floor: int, decisions: Decisions, model: ModelShape) -> tuple[int, str]:
    if size < floor:
        size = floor
        why += f", raised to {format_bytes(_BYTES * size)} in 16 bits, below which latency rules"
    bounds = [(LARGEST_BUCKET, "DeepSpeed's default"), (model.num_parameters, "all of the model")]
    if decisions.run.cluster.gpu_memory_bytes is not None:
        share = max(1, int(GPU_SHARE * decisions.run.cluster.gpu_memory_bytes / _BYTES))
        bounds.append((share, f"{GPU_SHARE:.0%} of the GPU's memory"))
    bound, name = min(bounds)
    if size > bound:
        size = bound
        why += f", cut to {name}"
    return size, why


def _sub_group(decisions: Decisions, model: ModelShape) -> Iterator[Choice]:
    share = math.ceil(model.num_parameters / (decisions.run.cluster.num_gpus or 1))
    if decisions.inference or decisions.offload_optimizer == "cpu" or share <= SUB_GROUP:
        return
    if decisions.offload_optimizer == "nvme":
        why = f"4 pinned buffers of a sub-group in fp32 on each rank: {format_bytes(16 * SUB_GROUP)}"
        source = "deepspeed/runtime/zero/stage3.py, _configure_tensor_swapping"
    else:
        default = format_bytes(4 * min(share, 1_000_000_000))
        why = f"each step makes fp32 gradients of one sub-group: {format_bytes(4 * SUB_GROUP)} "
        why += f"({default} with DeepSpeed's default)"
        source = "deepspeed/runtime/zero/stage3.py, _prepare_fp32_grad_for_sub_group"
    yield _choice("sub_group_size", SUB_GROUP, why, source)


def nvme_buffer_choices(decisions: Decisions) -> Iterator[Choice]:
    """Keys of `offload_param` for NVMe: how many buffers, and how large."""

    def choice(key: str, value: int, why: str) -> Choice:
        source = "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py, swap_in and get_buffer"
        return Choice((ZERO, "offload_param", key), value, why, source)

    model, ranks = decisions.run.model, decisions.run.cluster.num_gpus or 1
    if model is None:
        yield choice("buffer_count", FEWEST, WHY_MORE)
        return
    buffers = NvmeBuffers(model, ranks, element_bytes=4 if decisions.precision == "fp32" else _BYTES)
    count, size, largest = buffers.count, buffers.size, buffers.largest
    yield choice("buffer_count", count, f"{WHY_MORE}; one has {buffers.of_layer} parameters that go to NVMe")
    why = f"holds a rank's share of {largest.name}, {format_count(largest.elements)} elements"
    if decisions.run.cluster.num_gpus is None:
        why += ", on one GPU (less with --num-gpus)"
    pinned = format_bytes(count * buffers.element_bytes * size)
    why += f"; {count} buffers pin {pinned} on the host of each rank"
    yield choice("buffer_size", size, why)
    share = math.ceil(model.num_parameters / ranks)
    if share <= _STAYS_IN_MEMORY:
        why = f"a rank's {format_count(share)} elements are fewer than the 1e9 that stay in the host's memory"
        why += " by default, so that the device cpu would do the same"
        path = (ZERO, "offload_param", "max_in_cpu")
        yield Choice(path, LEFT_OUT, why, "deepspeed/runtime/zero/stage3.py, _move_to_flat_buffer")


def _choice(key: str, value: Any, why: str, source: str = _FILLING) -> Choice:
    return Choice((ZERO, key), value, why, source)

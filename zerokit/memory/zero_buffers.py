"""The temporary buffers of ZeRO without offload in DeepSpeed 0.19.8, in bytes on one GPU.

Every function takes the sizes of the parameters in elements, in the model's order, and e, the bytes of one
element of a parameter or gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerokit.memory.model_states import ceil_div, check_positive

ALLREDUCE_BUCKET_ELEMENTS = 500_000_000
"""Elements that stage 0 flattens at a time: runtime/engine.py MEMORY_OPT_ALLREDUCE_SIZE, not configurable."""


@dataclass(frozen=True)
class ZeroOptions:
    """The `zero_optimization` keys that size buffers, spelled and defaulted as DeepSpeed does.

    Counts of elements. Stage 3 reads all but `overlap_comm`, stages 1 and 2 the first two.

    Raises:
        ZerokitError: a bucket or a sub-group that is not positive.
    """

    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000

    def __post_init__(self) -> None:
        check_positive(reduce_bucket_size=self.reduce_bucket_size, sub_group_size=self.sub_group_size)


def flat_partition_elements(num_parameters: int, world_size: int) -> int:
    """Elements of one rank's part of the flat buffer, which is padded to a multiple of 2N.

    Source: runtime/zero/stage_1_and_2.py DeepSpeedZeroOptimizer.__init__ (nccl_start_alignment_factor).
    """
    return 2 * ceil_div(num_parameters, 2 * world_size)


def shard_elements(parameter_sizes: Sequence[int], world_size: int) -> int:
    """Elements of one rank's shards under stage 3, which pads every parameter to a multiple of N.

    Source: runtime/zero/partition_parameters.py Init._partition_param.
    """
    return sum(ceil_div(size, world_size) for size in parameter_sizes)


@dataclass(frozen=True)
class OwnedGradients:
    """The gradients of one rank's partition under stages 1 and 2, in elements."""

    kept: int
    """A parameter that reaches into the partition counts whole: about Φ/N and those on the borders."""
    largest_slice: int
    """The largest part of one parameter inside the partition."""


def owned_gradients(parameter_sizes: Sequence[int], world_size: int) -> list[OwnedGradients]:
    """What each rank that owns any parameter keeps of the gradients until the optimizer's step.

    Source: runtime/zero/stage_1_and_2.py copy_grads_in_partition and get_flat_partition.
    """
    partition = flat_partition_elements(sum(parameter_sizes), world_size)
    slices: dict[int, list[tuple[int, int]]] = {}
    offset = 0
    for size in parameter_sizes:
        end = offset + size
        for rank in range(offset // partition, (end - 1) // partition + 1):
            inside = min(end, (rank + 1) * partition) - max(offset, rank * partition)
            slices.setdefault(rank, []).append((size, inside))
        offset = end
    return [
        OwnedGradients(kept=sum(size for size, _ in owned), largest_slice=max(inside for _, inside in owned))
        for owned in slices.values()
    ]


def persistent_elements(parameter_sizes: Sequence[int], threshold: int) -> int:
    """Elements that stage 3 keeps whole on every rank, because their parameter is small.

    Source: runtime/zero/parameter_offload.py DeepSpeedZeRoOffload.mark_persistent_parameters.
    """
    return sum(size for size in parameter_sizes if size <= threshold)


def live_elements(gatherable: int, options: ZeroOptions) -> int:
    """Elements that stage 3 holds gathered where forward turns into backward: min(Φ, max_live_parameters).

    While fewer than `stage3_max_live_parameters` are live, the prefetcher walks past every parameter that is
    still gathered and so marks it as fetched for its next use, which keeps it from being released.

    Source: runtime/zero/partitioned_param_coordinator.py _fetch_sub_module_impl and __params_to_release.
    """
    return min(gatherable, options.stage3_max_live_parameters)


def fetch_copy_elements(parameter_sizes: Sequence[int], options: ZeroOptions) -> int:
    """Elements copied while stage 3 gathers ahead: a prefetch bucket, exceeded by at most one parameter.

    Source: runtime/zero/partition_parameters.py AllGatherCoalescedHandle.wait.
    """
    most = options.stage3_prefetch_bucket_size + max(parameter_sizes)
    return min(most, sum(parameter_sizes), max(options.stage3_max_live_parameters, max(parameter_sizes)))

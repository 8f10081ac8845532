"""What sequence and tensor parallelism add to a step: the collectives of a rank's group."""

from __future__ import annotations

from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.step_time.layers import Layers, Part, host_seconds

Place = tuple[int, int]
"""GPUs of a group in each node, and nodes."""


def places(cluster: Cluster, parallelism: Parallelism) -> tuple[Place, Place, Place]:
    """The ranks that share sequences, that share layers, and that share ZeRO's states.

    Groups are consecutive ranks, those of tensor parallelism innermost; ZeRO's have one rank of each of those.
    """
    local, tensor = cluster.local_ranks, min(parallelism.tensor, cluster.local_ranks)
    near = max(min(parallelism.sequence, local // tensor), 1)
    sharing = cluster.world_size // parallelism.tensor
    states = min(local // tensor, sharing)
    return ((near, parallelism.sequence // near), (tensor, parallelism.tensor // tensor), (states, sharing // states))


def exchanges(costs: CardCosts, layers: Layers, part: Part) -> tuple[float, float]:
    """Seconds of a layer or of what is outside, for which the compute stream waits, and CPU seconds.

    Source: deepspeed/runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF.forward;
    deepspeed/module_inject/layers.py RowParallel, ColumnParallel, GatherFromTensorParallelRegion.
    """
    parallelism, seconds, host = layers.run.parallelism, 0.0, 0.0
    of_sequence, of_layer, _ = places(costs.cluster, parallelism)
    if parallelism.sequence > 1 and part.startswith("layer"):
        host = host_seconds(costs, part.replace("layer", "ulysses"))
        seconds = sum(costs.collective("all_to_all", round(size), *of_sequence) for size in layers.exchanged)
        if part == "layer_forward":  # position ids in int64
            all_tokens = round(layers.batch.tokens * parallelism.sequence)
            seconds += costs.collective("all_gather", 8 * all_tokens, *of_sequence)
    if parallelism.tensor > 1:
        found = layers.tensor_collectives(part)
        seconds += sum(costs.collective(kind, round(size), *of_layer) for kind, size in found)
        host += len(found) * costs.collective_launch()
    return seconds, host

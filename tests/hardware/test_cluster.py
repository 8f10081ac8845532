"""The machines of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.units import GIB, MIB

SIZES = st.integers(min_value=1, max_value=10**6)


@given(SIZES, SIZES)
def test_gpus_are_in_whole_nodes_or_refused(num_gpus: int, per_node: int) -> None:
    cluster = Cluster(num_gpus, per_node)
    assert cluster.world_size == num_gpus
    assert 1 <= cluster.local_ranks <= min(num_gpus, per_node)
    if num_gpus <= per_node or num_gpus % per_node == 0:
        assert cluster.num_nodes * cluster.local_ranks == num_gpus
        assert (cluster.num_nodes == 1) == (num_gpus <= per_node)
        return
    with pytest.raises(ZerokitError) as caught:
        cluster.check_nodes()
    assert str(caught.value) == (
        f"--num-gpus: {num_gpus} GPUs do not fill nodes of {per_node}. Say with --gpus-per-node how many each node has"
    )


@given(st.integers(max_value=0))
def test_a_number_that_is_none_is_refused(number: int) -> None:
    with pytest.raises(ZerokitError, match=f"--num-gpus: {number} is no number of GPUs. Give 1 or more"):
        Cluster(number)
    with pytest.raises(ZerokitError, match=f"--gpus-per-node: {number} is no number of GPUs"):
        Cluster(8, number)


@given(SIZES, st.integers(min_value=-10, max_value=2 * 10**6))
def test_ranks_count_from_0(num_gpus: int, rank: int) -> None:
    cluster = Cluster(num_gpus)
    if 0 <= rank < num_gpus:
        cluster.check_rank(rank)
    else:
        with pytest.raises(ZerokitError, match=f"--rank: there is no rank {rank} among {num_gpus}"):
            cluster.check_rank(rank)


def test_unknown_facts_are_errors_when_they_are_needed() -> None:
    for needed in ("world_size", "local_ranks", "num_nodes"):
        with pytest.raises(ZerokitError, match="--num-gpus: the number of GPUs is not known"):
            getattr(Cluster(), needed)
    assert Cluster().gpu_memory_bytes is None


def test_memory_is_that_of_the_card_and_of_a_machine() -> None:
    cluster = Cluster(8, gpu=find_gpu("4090"), host_bytes=512 * GIB)
    assert cluster.gpu_memory_bytes == 24_217 * MIB
    assert hash(cluster) == hash(Cluster(8, gpu=find_gpu("rtx 4090"), host_bytes=512 * GIB))
    with pytest.raises(ZerokitError, match=r"--host-memory: 80 B is no machine's memory\. Write it like 1TiB"):
        Cluster(8, host_bytes=80)

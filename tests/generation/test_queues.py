"""Each request reaches one rank, and each completion rank 0."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.errors import DataError
from zerokit.generation.queues import BroadcastQueue, Collector, SharedQueue, send
from zerokit.generation.requests import Request

torch_distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch


def make_requests(count: int) -> list[Request]:
    return [Request(index, [1]) for index in range(count)]


@given(st.integers(0, 50), st.integers(1, 4), st.data())
def test_ranks_take_each_request_once(count: int, num_ranks: int, data: st.DataObject) -> None:
    store = torch_distributed.HashStore()
    queues = [SharedQueue(make_requests(count), store, num_ranks) for _ in range(num_ranks)]
    taken: list[int] = []
    unfinished = count
    while queues:
        rank, most = data.draw(st.integers(0, len(queues) - 1)), data.draw(st.integers(1, 9))
        found = queues[rank].take(most)
        if not found:
            queues.pop(rank)
            continue
        assert 0 < len(found) <= most
        assert num_ranks == 1 or len(found) <= max(1, -(-unfinished // num_ranks))
        taken += [request.index for request in found]
        for index in taken[count - unfinished : data.draw(st.integers(0, len(taken)))]:
            send(store, {"index": index})
            unfinished -= 1
    assert taken == [*range(count)]


def test_ranks_get_whole_batches_that_they_start_together() -> None:
    store = torch_distributed.HashStore()
    queues = [SharedQueue(make_requests(64), store, 4) for _ in range(4)]
    for number in range(2):
        batches = [queue.take(8) for queue in queues]
        assert [*map(len, batches)] == [8] * 4, f"batch {number}"
        for request in (each for batch in batches for each in batch):
            send(store, {"index": request.index})
    assert queues[0].take(8) == []


def test_a_stop_reaches_all_ranks() -> None:
    store = torch_distributed.HashStore()
    queues = [SharedQueue(make_requests(40), store, 2) for _ in range(2)]
    assert all(queue.take(2) for queue in queues)
    queues[0].stop()
    assert [queue.take(2) for queue in queues] == [[], []]


def test_ranks_of_one_model_take_the_same_until_a_stop() -> None:
    shared = SharedQueue(make_requests(40), torch_distributed.HashStore(), 1)
    queue = BroadcastQueue(shared, RankGroup(read_ranks({})))
    assert [request.index for request in queue.take(3) + queue.take(2)] == [*range(5)]
    shared.stop()
    assert queue.take(2) == []


@pytest.mark.parametrize("refused", [None, 2])
def test_rank_0_receives_until_all_ranks_are_done(refused: int | None) -> None:
    store = torch_distributed.HashStore()
    received: list[Any] = []
    stopped = threading.Event()

    def receive(message: dict[str, Any]) -> None:
        if message["index"] == refused:
            raise DataError("the disk is full")
        received.append(message["index"])

    collector = Collector(store, 2, receive, stopped.set)
    collector.start()
    for number in range(4):
        send(store, {"index": number})
    send(store, None)
    if refused is None:
        assert collector.is_alive()
        send(store, None)
        collector.finish()
        assert store.num_keys() == 1, "only the counter is left"
    else:
        with pytest.raises(DataError, match="the disk is full"):
            collector.finish()
    assert received == [*range(4 if refused is None else refused)]
    assert stopped.is_set() == (refused is not None)

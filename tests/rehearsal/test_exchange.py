"""What ranks that are rehearsed at the same time tell each other; a thread plays each rank."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.recordings import job
from zerokit.errors import RunError
from zerokit.rehearsal.ranks.call_order import SCRIPT_ENDED, STEPS_DONE, unequal_calls
from zerokit.rehearsal.ranks.exchange import UNKNOWN, Exchange, prepare_exchange_of_change
from zerokit.rehearsal.ranks.groups import Groups
from zerokit.rehearsal.ranks.journal import Journal
from zerokit.rehearsal.ranks.role_watch import RoleWatch

WORLD = (0, 1, 2, 3)
STAGES = [(0, 2), (1, 3)]
PATIENCE = 60


def together(folder: Path, *ranks: Callable[[Exchange], Any], num_gpus: int = 4) -> list[Any]:
    """Run a function for rank 0 and each further one for the last ranks; what they return."""
    numbers = [0, *range(num_gpus - len(ranks) + 1, num_gpus)]
    with ThreadPoolExecutor(len(ranks)) as pool:
        running = [
            pool.submit(rank, Exchange(folder, number, num_gpus)) for rank, number in zip(ranks, numbers, strict=True)
        ]
        return [one.result(PATIENCE) for one in running]


def test_a_value_comes_from_its_rank_or_from_the_last_one_for_those_not_rehearsed(tmp_path: Path) -> None:
    def shares(own: Exchange) -> Any:
        value = "of the last" if own.rank == 3 else UNKNOWN
        return own.share(WORLD, "broadcast", value, of=[3]), own.share(WORLD, "all_gather", 7 + own.rank)

    first, last = together(tmp_path, shares, shares)
    assert first == last == ({3: "of the last"}, {0: 7, 1: 10, 2: 10, 3: 10})


def test_what_is_told_for_others_is_counted_unless_it_is_the_own(tmp_path: Path) -> None:
    def counted(own: Exchange) -> Any:
        own.share(WORLD, "all_gather", b"same")
        own.share(WORLD, "all_gather", b"%d" % own.rank)
        return own.substituted

    # Of ranks 1 and 2, the last one's value is told to both, and is its own.
    assert together(tmp_path, counted, counted) == [2, 0]


def test_a_group_hears_what_the_like_of_its_ranks_say_in_theirs(tmp_path: Path) -> None:
    Journal(tmp_path, 0).write("groups.2", payload=json.dumps([("a", "pipeline", ranks) for ranks in STAGES]).encode())
    assert RoleWatch(tmp_path, 4).update_roles() == (0, 3)

    def sums(own: Exchange) -> Any:
        for ranks in STAGES:
            own.register_group(ranks)
        return own.share(STAGES[0 if own.rank == 0 else 1], "all_reduce", 10 + own.rank)

    assert together(tmp_path, sums, sums) == [{0: 10, 2: 13}, {1: 10, 3: 13}]


def test_what_was_sent_is_received_and_a_late_rank_finds_it(tmp_path: Path) -> None:
    watch = RoleWatch(tmp_path, 2)
    Journal(tmp_path, 0).write("pair.1", "0", "1")
    watch.update_roles()
    Exchange(tmp_path, 0, 2).send(1, 0, "3 x int64", b"abc")
    late = Exchange(tmp_path, 1, 2)
    assert late.wait_for(late.expect(0, 0, "3 x int64")) == b"abc"


def both_waiting(folder: Path, *ranks: Callable[[Exchange], Any]) -> list[str]:
    def told(rank: Callable[[Exchange], Any]) -> Callable[[Exchange], str]:
        def run(own: Exchange) -> str:
            with pytest.raises(RunError) as error:
                rank(own)
            return str(error.value)

        return run

    return together(folder, *map(told, ranks), num_gpus=2)


def test_ranks_that_wait_for_each_other_are_named_with_their_lines(tmp_path: Path) -> None:
    def receive(own: Exchange) -> None:
        own.wait_for(own.expect(1 - own.rank, 0, "1 x int64"))

    Journal(tmp_path, 0).write("pair.1", "0", "1")
    RoleWatch(tmp_path, 2).update_roles()
    for message in both_waiting(tmp_path, receive, receive):
        assert "wait for each other" in message
        assert "rank 0 in receive 1 x int64 at " in message
        assert "rank 1 in receive 1 x int64 at " in message
        assert message.count("test_exchange.py:") == 3


def test_ranks_that_do_not_call_the_same_are_named_with_their_lines(tmp_path: Path) -> None:
    messages = both_waiting(
        tmp_path,
        lambda own: own.share((0, 1), "all_reduce of 1 x int64", 1),
        lambda own: own.share((0, 1), "all_gather of 1 x int64", 1),
    )
    for message in messages:
        assert "do not call the same" in message
        assert "all_reduce of 1 x int64 at" in message
        assert "all_gather of 1 x int64 at" in message


def test_nobody_waits_for_a_rank_that_has_ended(tmp_path: Path) -> None:
    Exchange(tmp_path, 1, 2).close(SCRIPT_ENDED)
    with pytest.raises(RunError, match="for rank 1, whose script has ended, in all_gather"):
        Exchange(tmp_path, 0, 2).share((0, 1), "all_gather", 1)


def test_who_is_done_with_its_steps_leaves_the_others_to_their_own_values(tmp_path: Path) -> None:
    Exchange(tmp_path, 1, 2).close(STEPS_DONE)
    own = Exchange(tmp_path, 0, 2)
    assert own.share((0, 1), "all_gather", 1) == {0: 1}
    assert own.unknown_values == 1


def differences(folder: Path, made: dict[int, list[tuple[Any, ...]]], *, steps: dict[int, int]) -> list[str]:
    """Of ranks that stopped after so many steps, and made calls of (group, operation, async)."""
    for rank, calls in made.items():
        own = Exchange(folder, rank, 4)
        for ranks, operation, is_async in calls:
            own.record_call(ranks, operation, is_async=is_async)
        own.close(STEPS_DONE, steps=steps[rank])
    journals = [(rank, Journal(folder, rank)) for rank in made]
    for _, journal in journals:
        journal.read_on()
    return unequal_calls(journals)


def test_unequal_calls_are_told_with_both_lines_whatever_they_carry(tmp_path: Path) -> None:
    made = {0: ["all_reduce", "broadcast"], 1: ["all_reduce", "all_gather", "all_reduce"], 3: ["all_reduce"]}
    calls = {rank: [(WORLD, operation, False) for operation in called] for rank, called in made.items()}
    # A rank that is done with its steps may call more later.
    (line,) = differences(tmp_path, calls, steps={rank: rank for rank in made})
    assert re.search(r"rank 0 calls broadcast at .*test_exchange.py:\d+, where rank 1", line)
    assert re.search(r"calls all_gather at .*test_exchange.py:\d+", line)


def test_a_call_that_one_rank_makes_alone_in_a_step_is_told(tmp_path: Path) -> None:
    step = (WORLD, "all_reduce", False)
    for at, (own, others, steps, told) in enumerate(
        [
            ([step, (WORLD, "barrier", False)], [step], (2, 2), True),
            ([], [(WORLD, "barrier", False)], (2, 2), True),
            ([step, (WORLD, "barrier", False)], [step], (3, 2), False),  # it may come in its third step
            ([step, (WORLD, "all_gather", True)], [step], (2, 2), False),
            ([step, ((0, 1), "barrier", False)], [step], (2, 2), False),  # rank 3 is not of that group
            ([step, ((0, 3), "barrier", False)], [step], (2, 2), True),
        ]
    ):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        found = differences(folder, {0: own, 3: others}, steps={0: steps[0], 3: steps[1]})
        assert bool(found) == told, (at, found)


class Maker:
    """Makes a group, and has no dict of its own."""

    __slots__ = ("__weakref__", "group")

    def make(self, groups: Groups) -> None:
        groups.note((0, 1), object(), "mesh_tensor_parallel")


def test_rank_0_tells_of_its_groups_before_it_waits_for_roles(tmp_path: Path) -> None:
    RoleWatch(tmp_path, 4).close()  # nobody answers, so that nobody waits
    Exchange(tmp_path, 3, 4).close(STEPS_DONE)
    own, maker = Exchange(tmp_path, 0, 4), Maker()
    maker.make(Groups(own))
    assert own.share((0, 1), "broadcast_object_list", of=[1]) == {}
    said = Journal(tmp_path, 0)
    said.read_on()
    (entry,) = said.of_kind["groups"]
    assert [kind for _, kind, _ in json.loads(said.payload(entry))] == ["tensor"]


def test_a_rank_tells_of_its_groups_at_its_end_at_the_latest(tmp_path: Path) -> None:
    own = Exchange(tmp_path, 0, 4)
    Groups(own).note((1, 2, 3), object(), None)
    own.close(SCRIPT_ENDED)
    assert RoleWatch(tmp_path, 4).update_roles() == (0, 1, 3)
    Exchange(tmp_path, 1, 4).close(STEPS_DONE)
    other = Exchange(tmp_path, 3, 4)
    other.register_group((1, 2, 3))
    assert other.share((1, 2, 3), "broadcast", of=[1]) == {}


def test_nobody_waits_for_roles_of_groups_that_rank_0_does_not_make(tmp_path: Path) -> None:
    RoleWatch(tmp_path, 4).update_roles()

    def first(own: Exchange) -> Any:
        told = own.share(WORLD, "all_reduce", 1)
        own.close(SCRIPT_ENDED)
        return told

    def last(own: Exchange) -> Any:
        own.register_group((1, 2, 3))
        among = own.share((1, 2, 3), "all_gather", 5)  # rank 0 waits for what comes next
        told = own.share(WORLD, "all_reduce", 2)
        own.register_group((2, 3))
        return among, told, own.share((2, 3), "all_gather", 6)  # rank 0 ends

    everybody = {0: 1, 1: 2, 2: 2, 3: 2}
    assert together(tmp_path, first, last) == [everybody, ({1: 5, 2: 5, 3: 5}, everybody, {2: 6, 3: 6})]


def test_groups_of_the_same_ranks_have_an_order_each(tmp_path: Path) -> None:
    def rank(own: Exchange) -> Any:
        numbers = [own.register_group((0, 1)) for _ in "AB"]
        assert numbers == [1, 2]  # the first is that of all ranks
        shared = {}
        for number in numbers if own.rank == 0 else numbers[::-1]:
            own.record_call((0, 1), f"all_reduce of {number}", number=number)
            shared[number] = own.share((0, 1), f"all_reduce of {number}", number, number=number, is_async=True)
        own.close(SCRIPT_ENDED)
        return shared

    watch = RoleWatch(tmp_path, 2)
    Journal(tmp_path, 0).write("groups.1", payload=json.dumps([("a", "unknown", (0, 1))]).encode())
    watch.update_roles()
    for own, shared in enumerate(together(tmp_path, rank, rank, num_gpus=2)):
        assert {number: held[own] for number, held in shared.items()} == {1: 1, 2: 2}
    assert watch.close() == []


def test_a_change_hears_only_what_rank_0_made_for_all_ranks_before(tmp_path: Path) -> None:
    before = job(num_gpus=2, exchange_folder=str(tmp_path / "before"))
    (tmp_path / "before").mkdir()
    first = Exchange(tmp_path / "before", 0, 2)
    first.made_once("scanned.1", "look through the data", lambda: [8, 9])
    first.share((0, 1), "all_gather of 4 x int64", 4, of=[0])
    for num_gpus, found in ((2, [8, 9]), (4, [])):
        folder = tmp_path / str(num_gpus)
        changed = job(num_gpus=num_gpus, exchange_folder=str(folder))
        prepare_exchange_of_change(before, changed, alone=True)
        own = Exchange(folder, 0, num_gpus)
        assert own.made_once("scanned.1", "look through the data", list) == found
        world = tuple(range(num_gpus))
        assert own.share(world, "all_gather of 2 x int64", 5) == {0: 5}
        assert not (tmp_path / "before" / "journal-1").exists()


def test_a_rank_by_itself_waits_for_nobody() -> None:
    own = Exchange(None, 1, 2)
    assert not own.is_active
    assert own.share((0, 1), "broadcast", UNKNOWN, of=[0]) == {}
    assert own.unknown_values == 1

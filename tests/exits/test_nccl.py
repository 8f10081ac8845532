"""What ranks say whose collective of NCCL timed out, and what may be concluded from it."""

from __future__ import annotations

from tests.exits.explained import explain

_SAYS = "[rank{rank}]:[E1122 10:00:00.1 ProcessGroupNCCL.cpp:632] "
_TIMEOUT = (
    _SAYS + "[Rank {within}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
    "OpType={call}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600013 milliseconds before "
    "timing out."
)
_DETECTED = (
    _SAYS + "[{group} Rank {within}] Exception (either an error or timeout) detected by watchdog at work: "
    "{number}, last enqueued NCCL work: 43, last completed NCCL work: 40."
)
DIFFERENT = "they belong to different process groups, and each group counts its own collectives"


def timeout(rank: int, number: int = 41, call: str = "ALLREDUCE", size: int = 1, within: int | None = None) -> str:
    """Of a rank, as all count them and as its group does."""
    within = rank if within is None else within
    return _TIMEOUT.format(rank=rank, number=number, call=call, size=size, within=within)


def detected(rank: int, group: str, number: int = 41, within: int | None = None) -> str:
    """The same of a group, such as ``PG 1`` or ``PG ID 2 PG GUID 9``."""
    within = rank if within is None else within
    return _DETECTED.format(rank=rank, group=group, number=number, within=within)


def test_ranks_that_waited_name_the_one_that_did_not_come() -> None:
    absent = explain("world_size=4", *(timeout(rank) for rank in (0, 1, 3)))
    assert absent.cause == "nccl-timeout"
    assert "ranks 0-1, 3 waited in ALLREDUCE (number 41, 1 elements)" in absent.message
    assert "rank 2 did not reach it" in absent.message
    behind = explain(timeout(0), timeout(1, number=40))
    assert "rank 1 fell behind" in behind.message
    other = explain(timeout(0), timeout(1, call="ALLGATHER", size=64))
    assert "different calls" in other.message
    assert "rehearse" in str(other.fix)


def test_a_rank_whose_own_line_is_lost_waited_where_others_of_its_group_did() -> None:
    for group in ("PG 1", "PG ID 0 PG GUID 0(default_pg)", "PG ID 3 PG GUID 7"):
        lines = (timeout(0), detected(0, group), detected(2, group))
        found = explain("world_size=3", *lines)
        assert found.message.endswith(
            "ranks 0, 2 waited in ALLREDUCE (number 41, 1 elements); rank 1 did not reach it"
        )
    other = explain("world_size=2", timeout(0), detected(0, "PG ID 0 PG GUID 0"), detected(1, "PG ID 3 PG GUID 7"))
    assert other.message.endswith(f"(number 41, 1 elements); rank 1 waited in a collective (number 41); {DIFFERENT}")
    # Of which group the first one is, the log does not say.
    unknown = explain("world_size=2", timeout(0), detected(1, "PG ID 3 PG GUID 7"))
    assert unknown.message.endswith(
        "rank 1 waited in a collective (number 41); the log does not say whether other ranks are missing"
    )


def test_a_group_is_known_by_what_all_its_ranks_call_it() -> None:
    both = (timeout(0), timeout(1, number=7))
    # The ID is a counter of each process.
    one = ("PG ID 1 PG GUID 9", "PG ID 2 PG GUID 9")
    two = ("PG ID 1 PG GUID 9", "PG ID 1 PG GUID 11(tp)")
    for groups, message in ((one, "rank 1 fell behind"), (two, DIFFERENT), (("PG 1", "PG 3"), DIFFERENT)):
        assert explain(*both, detected(0, groups[0]), detected(1, groups[1], 7)).message.endswith(message)
    assert explain(*both).message.endswith("rank 1 fell behind")


def test_calls_of_different_groups_are_not_compared_though_their_numbers_are_one() -> None:
    lines = (timeout(0, 5), timeout(1, 5, "_ALLGATHER_BASE", 9))
    assert "different calls" in explain(*lines).message
    of_groups = (detected(0, "PG ID 0 PG GUID 0(default_pg)", 5), detected(1, "PG ID 1 PG GUID 3(tp)", 5))
    assert explain(*lines, *of_groups).message.endswith(DIFFERENT)


def test_a_rank_has_the_number_that_all_ranks_know_it_by() -> None:
    lines = [timeout(rank, within=rank - 4) for rank in (4, 5)]
    assert "ranks 4-5 waited in ALLREDUCE (number 41, 1 elements)" in explain(*lines).message


def test_that_nothing_has_passed_is_said_of_the_first_collective_alone() -> None:
    assert "has carried no data yet" in str(explain("world_size=1", timeout(0, number=1)).fix)
    for number in (2, 41):
        assert "carried" not in str(explain("world_size=1", timeout(0, number)).fix)

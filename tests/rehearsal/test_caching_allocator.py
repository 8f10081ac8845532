"""The model of PyTorch's CUDA caching allocator: rules, the real one's figures, invariants."""

from __future__ import annotations

import ctypes
import itertools
import zlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples

from .caching_allocator import GB, KB, MB, Allocator, build, trace


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("caching_allocator"))


# ---- sizes: round_size, get_allocation_size, should_split ----------------------------------------------


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MB),
        (512, 512, 2 * MB),
        (513, 1024, 2 * MB),
        (1_000_000, 1_000_448, 2 * MB),
        (MB - 512, MB - 512, 2 * MB),
        (MB, MB, 2 * MB),  # the largest of the small pool
        (MB + 1, MB + 512, 20 * MB),
        (10 * MB - 512, 10 * MB - 512, 20 * MB),
        (10 * MB - 511, 10 * MB, 10 * MB),
        (10 * MB + 512 * KB, 10 * MB + 512 * KB, 12 * MB),  # 1.5 MiB are left: split off
        (11 * MB, 12 * MB, 12 * MB),  # exactly 1 MiB is left: not split, and it counts as allocated
        (11 * MB + 512 * KB, 12 * MB, 12 * MB),
        (4 * GB + 1, 4 * GB + 512, 4 * GB + 2 * MB),
        (19 * MB + 512, 20 * MB, 20 * MB),
    ],
)
def test_one_allocation(library: ctypes.CDLL, requested: int, allocated: int, reserved: int) -> None:
    allocator = Allocator(library)
    allocation = allocator.allocate(requested)
    assert allocator.allocated_size(allocation) == allocated
    assert allocator["allocated_bytes"] == allocator["active_bytes"] == allocated
    assert allocator["requested_bytes"] == requested
    assert allocator["reserved_bytes"] == reserved
    assert allocator["inactive_split_bytes"] == reserved - allocated
    assert allocator["segment"] == 1
    pool = "small_pool" if allocated <= MB else "large_pool"
    assert allocator.stats()[f"allocated_bytes.{pool}.current"] == allocated


def test_requests_share_a_segment_until_it_is_full(library: ctypes.CDLL) -> None:
    allocator = Allocator(library)
    first, second = allocator.allocate(9 * MB), allocator.allocate(9 * MB)
    assert allocator.address(second) - allocator.address(first) == 9 * MB
    assert allocator["reserved_bytes"] == 20 * MB
    third = allocator.allocate(2 * MB)  # exactly what is left
    assert allocator["inactive_split"] == 0
    assert allocator.address(third) - allocator.address(first) == 18 * MB
    allocator.allocate(2 * MB)
    assert allocator["reserved_bytes"] == 40 * MB


def test_best_fit_is_smallest_then_lowest(library: ctypes.CDLL) -> None:
    allocator = Allocator(library)
    sizes = [64, 32, 48, 32]
    blocks = [allocator.allocate(size * MB) for size in sizes]
    addresses = [allocator.address(block) for block in blocks]
    allocator.release(*reversed(blocks))
    found = [allocator.address(allocator.allocate(31 * MB + MB // 2)) for _ in range(4)]
    assert found == [addresses[1], addresses[3], addresses[2], addresses[0]]
    # 32 are taken whole (0.5 MiB left), the others are split.
    assert allocator["allocated_bytes"] == 2 * 32 * MB + 2 * (31 * MB + MB // 2)


def test_streams_do_not_share(library: ctypes.CDLL) -> None:
    allocator = Allocator(library)
    allocator.release(allocator.allocate(64 * MB, stream=0))
    allocator.allocate(64 * MB, stream=1)
    assert allocator["reserved_bytes"] == 128 * MB
    assert [segment.stream for segment in allocator.snapshot()] == [0, 1]


def test_neighbours_merge(library: ctypes.CDLL) -> None:
    allocator = Allocator(library)
    blocks = [allocator.allocate(4 * MB) for _ in range(5)]
    allocator.release(blocks[1], blocks[3])
    assert (allocator["inactive_split"], allocator["inactive_split_bytes"]) == (2, 8 * MB)
    allocator.release(blocks[2])
    assert (allocator["inactive_split"], allocator["inactive_split_bytes"]) == (1, 12 * MB)
    (segment,) = allocator.snapshot()
    assert [(block.size // MB, block.state) for block in segment.blocks] == [
        (4, "active_allocated"),
        (12, "inactive"),
        (4, "active_allocated"),
    ]
    allocator.empty_cache()  # no segment is free as a whole
    assert allocator["reserved_bytes"] == 20 * MB
    allocator.release(blocks[0], blocks[4])
    assert (allocator["inactive_split"], allocator["inactive_split_bytes"]) == (0, 0)
    allocator.empty_cache()
    assert allocator["reserved_bytes"] == allocator["segment"] == 0
    assert allocator.snapshot() == []


def test_peaks(library: ctypes.CDLL) -> None:
    allocator = Allocator(library)
    allocator.release(allocator.allocate(30 * MB))
    allocator.allocate(10 * MB)
    assert allocator.stats()["allocated_bytes.all.peak"] == 30 * MB
    allocator.reset_peak()
    assert allocator.stats()["allocated_bytes.all.peak"] == 10 * MB
    assert allocator.stats()["allocated_bytes.all.allocated"] == 40 * MB
    assert allocator.stats()["reserved_bytes.all.peak"] == 30 * MB


# ---- options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "divisions", "expected"),
    [
        (84 * MB, 4, 96 * MB),  # pytorch test/test_cuda.py, test_allocator_settings: 21 Mi floats
        (84 * MB, 1, 84 * MB),
        (2500, 4, 2560),
        (2048, 4, 2048),
        (1200, 4, 1536),  # not above 4 * 512 bytes: rounded to 512 as usual
        (65 * MB, 8, 72 * MB),
        (128 * MB, 8, 128 * MB),
    ],
)
def test_roundup_power2_divisions(library: ctypes.CDLL, size: int, divisions: int, expected: int) -> None:
    allocator = Allocator(library, roundup_power2_divisions=divisions)
    allocator.allocate(size)
    assert allocator["allocated_bytes"] == expected


def test_expandable_segments(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, expandable_segments=1)
    blocks = [allocator.allocate(11 * MB + MB // 2) for _ in range(4)]
    assert allocator["allocated_bytes"] == 46 * MB  # nothing unsplit
    assert allocator["reserved_bytes"] == 60 * MB  # pages of 20 MiB
    assert (allocator["segment"], allocator["inactive_split_bytes"]) == (0, 0)
    allocator.allocate(512)
    assert allocator["reserved_bytes"] == 62 * MB  # pages of 2 MiB
    allocator.release(blocks[1], blocks[2])  # bytes 11.5 to 34.5 MiB: only one whole page (20 to 40) is not free
    allocator.empty_cache()
    assert allocator["reserved_bytes"] == 62 * MB
    allocator.release(blocks[3])
    allocator.empty_cache()
    assert allocator["reserved_bytes"] == 22 * MB
    # The first page has 8.5 MiB left; 40 MiB start there and need two more pages.
    assert allocator.address(allocator.allocate(40 * MB)) - allocator.address(blocks[0]) == 11 * MB + MB // 2
    assert allocator["reserved_bytes"] == 62 * MB


def test_unmapped_hole_divides_an_expandable_segment(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, expandable_segments=1)
    blocks = [allocator.allocate(20 * MB) for _ in range(3)]
    allocator.release(blocks[1])
    allocator.empty_cache()
    assert [segment.size for segment in allocator.snapshot()] == [20 * MB, 20 * MB]
    assert allocator.address(allocator.allocate(15 * MB)) == allocator.address(blocks[0]) + 20 * MB


def test_max_split_size(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, max_split_size=64 * MB)
    allocator.release(allocator.allocate(100 * MB))
    allocator.allocate(40 * MB)  # must not break up an oversize block
    assert allocator["reserved_bytes"] == 140 * MB
    allocator.release(allocator.allocate(80 * MB))  # nor waste 20 MiB or more of one
    assert allocator["reserved_bytes"] == 220 * MB
    allocator.allocate(81 * MB)  # 19 MiB less than 100
    assert allocator["reserved_bytes"] == 220 * MB
    assert allocator["allocated_bytes"] == 140 * MB


def test_large_segment_size(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, large_segment_size=32 * MB)
    allocator.allocate(9 * MB)
    assert allocator["reserved_bytes"] == 32 * MB
    allocator.allocate(24 * MB)  # not below 10 MiB: a segment of its own
    assert allocator["reserved_bytes"] == 56 * MB


# ---- streams -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_recorded_stream_defers_the_free(library: ctypes.CDLL, lag: int) -> None:
    allocator = Allocator(library, event_lag=lag)
    block = allocator.allocate(40 * MB, stream=0)
    allocator.record_stream(block, 1)
    address = allocator.address(block)
    allocator.release(block)
    assert (allocator["allocated_bytes"], allocator["active_bytes"]) == (0, 40 * MB)
    assert allocator["requested_bytes"] == 40 * MB
    assert allocator.snapshot()[0].blocks[0].state == "active_awaiting_free"
    addresses = [allocator.address(allocator.allocate(40 * MB)) for _ in range(lag + 1)]
    assert addresses.index(address) == lag


def test_event_completes_at_synchronize_only(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, event_lag=-1)
    block = allocator.allocate(40 * MB)
    allocator.record_stream(block, 1)
    allocator.record_stream(block, 2)
    allocator.release(block)
    allocator.release(allocator.allocate(512))
    assert allocator["active"] == 1
    allocator.synchronize()
    assert allocator["active"] == 1  # PyTorch looks at the events when it allocates
    allocator.release(allocator.allocate(512))
    assert allocator["active"] == 0


def test_own_stream_defers_nothing(library: ctypes.CDLL) -> None:
    allocator = Allocator(library)
    block = allocator.allocate(40 * MB, stream=3)
    allocator.record_stream(block, 3)
    allocator.release(block)
    assert allocator["active_bytes"] == 0


def test_empty_cache_waits_for_events(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, event_lag=-1)
    block = allocator.allocate(40 * MB)
    allocator.record_stream(block, 1)
    allocator.release(block)
    allocator.empty_cache()
    assert allocator["reserved_bytes"] == allocator["active"] == 0


# ---- long runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    seed: int
    streams: int
    steps: int = 1500
    options: dict[str, float] = field(default_factory=dict)


CASES = {
    "defaults": Case(1, 1),
    "three streams": Case(2, 3),
    "expandable": Case(4, 1, options={"expandable_segments": 1, "total_memory": 64 * GB}),
    "max_split_size": Case(6, 2, options={"max_split_size": 40 * MB, "max_non_split_rounding_size": 30 * MB}),
    "roundup": Case(7, 2, options={"roundup_power2_divisions": 8, "large_segment_size": 32 * MB, "event_lag": -1}),
}

FIGURES = (
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "active_bytes.all.peak",
    "requested_bytes.all.allocated",
)

# The same traces through the allocator of the CUDA build of torch 2.13.0 (libc10_cuda.so), on a CUDA runtime
# that only counts: cudaMalloc and cuMemAddressReserve give out ascending addresses from 0x7f << 40. Events
# complete as `event_lag` says. The last number is the checksum of `run`.
# The row "max_split_size" comes from this model: the real allocator ran it with a limited capacity only.
EXPECTED: dict[str, tuple[int, ...]] = {
    "defaults": (4466136064, 4798283776, 4466136064, 16877442882, 3841656126),
    "three streams": (4510513664, 5683281920, 4513253376, 16954652481, 3992120601),
    "expandable": (4525114880, 4857004032, 4525114880, 17628898351, 3450536043),
    "max_split_size": (3801923584, 4112515072, 3801923584, 15268888124, 36021546),
    "roundup": (3601300480, 3854565376, 3601300480, 15007292024, 3114336867),
}


def digest_update(digest: int, allocator: Allocator) -> int:
    """Takes in all statistics and blocks, except what depends on the order in which streams are looked at:
    the history of inactive_split, and the former contents of free blocks."""
    stats = allocator.stats()
    words = [
        f"{name} {value}"
        for name, value in stats.items()
        if not name.startswith("inactive_split") or name.endswith(".current")
    ]
    for segment in allocator.snapshot():
        words.append(f"{segment.address} {segment.size} {segment.stream} {segment.small} {segment.expandable}")
        for block in segment.blocks:
            requested = 0 if block.state == "inactive" else block.requested
            words.append(f"{block.offset} {block.size} {requested} {block.state}")
    return zlib.crc32("\n".join(words).encode(), digest)


def run(allocator: Allocator, case: Case) -> tuple[int, ...]:
    """Runs the case's trace; returns FIGURES and a checksum of the state after every 25 operations."""
    allocations: dict[int, int] = {}
    digest = 0
    for step, (operation, number, size, stream) in enumerate(trace(case.seed, case.steps, case.streams)):
        if operation == "allocate":
            allocations[number] = allocator.allocate(size, stream)
        elif operation == "record_stream":
            allocator.record_stream(allocations[number], stream)
        elif operation == "release":
            allocator.release(allocations.pop(number))
        elif operation == "synchronize":
            allocator.synchronize()
        else:
            allocator.empty_cache()
        if step % 25 == 0:
            digest = digest_update(digest, allocator)
    allocator.synchronize()
    allocator.empty_cache()
    stats = allocator.stats()
    assert stats["reserved_bytes.all.current"] == 0
    return (*(stats[name] for name in FIGURES), digest_update(digest, allocator))


@pytest.mark.parametrize("name", CASES)
def test_figures_of_the_real_allocator(library: ctypes.CDLL, name: str) -> None:
    case = CASES[name]
    assert run(Allocator(library, **case.options), case) == EXPECTED[name]


def check(allocator: Allocator) -> None:
    """What holds after every operation."""
    stats = allocator.stats()
    segments = allocator.snapshot()
    for before, after in itertools.pairwise(segments):
        assert before.address + before.size <= after.address
    totals = dict.fromkeys(("inactive", "active_allocated", "active_awaiting_free"), 0)
    for segment in segments:
        end = 0
        for block in segment.blocks:
            assert block.offset == end
            assert block.size > 0
            assert block.size % 512 == 0
            end += block.size
            totals[block.state] += block.size
        assert end == segment.size
        free = [block.state == "inactive" for block in segment.blocks]
        assert not any(left and right for left, right in itertools.pairwise(free))
    current = {name.removesuffix(".current"): value for name, value in stats.items() if name.endswith(".current")}
    assert current["reserved_bytes.all"] == sum(segment.size for segment in segments) == sum(totals.values())
    assert current["allocated_bytes.all"] == totals["active_allocated"]
    assert current["active_bytes.all"] == totals["active_allocated"] + totals["active_awaiting_free"]
    assert current["requested_bytes.all"] <= current["active_bytes.all"]
    for name, value in current.items():
        assert 0 <= value <= stats[f"{name}.peak"]
        assert value == stats[f"{name}.allocated"] - stats[f"{name}.freed"]
        if name.endswith(".all"):
            kind = name.removesuffix(".all")
            assert value == current[f"{kind}.small_pool"] + current[f"{kind}.large_pool"]


sizes = st.one_of(
    st.integers(1, 4 * KB),
    st.integers(1, 2 * MB),
    st.integers(1, 64 * MB),
    st.sampled_from([512, MB, MB + 1, 10 * MB - 511, 10 * MB, 11 * MB, 20 * MB, 40 * MB]),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes, st.integers(0, 2)),
        st.tuples(st.just("allocate"), sizes, st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 1000), st.just(0)),
        st.tuples(st.just("record_stream"), st.integers(0, 1000), st.integers(0, 2)),
        st.tuples(st.sampled_from(["synchronize", "empty_cache"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)
option_sets = st.fixed_dictionaries(
    {"event_lag": st.integers(-1, 2)},
    optional={
        "expandable_segments": st.sampled_from([0, 1]),
        "max_split_size": st.sampled_from([20 * MB, 32 * MB]),
        "roundup_power2_divisions": st.sampled_from([1, 2, 16]),
        "total_memory": st.sampled_from([64 * MB, GB]),
    },
)


@given(operations=operations, options=option_sets)
@examples(150)
def test_invariants(library: ctypes.CDLL, operations: list[tuple[str, int, int]], options: dict[str, float]) -> None:
    allocator = Allocator(library, **options)
    live: list[int] = []
    for operation, number, stream in operations:
        if operation == "allocate":
            live.append(allocator.allocate(number, stream))
            assert allocator.allocated_size(live[-1]) >= number
        elif operation == "release" and live:
            allocator.release(live.pop(number % len(live)))
        elif operation == "record_stream" and live:
            allocator.record_stream(live[number % len(live)], stream)
        elif operation == "synchronize":
            allocator.synchronize()
        elif operation == "empty_cache":
            allocator.empty_cache()
        check(allocator)
    allocator.release(*live)
    allocator.empty_cache()
    check(allocator)
    assert allocator.snapshot() == []
    assert allocator["reserved_bytes"] == allocator["requested_bytes"] == allocator["inactive_split"] == 0

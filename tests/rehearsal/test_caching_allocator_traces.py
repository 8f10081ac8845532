"""The model of PyTorch's CUDA caching allocator on long runs: the real one's figures, and invariants."""

from __future__ import annotations

import ctypes
import itertools
import zlib
from dataclasses import dataclass, field
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples

from .caching_allocator import GB, KB, MB, Allocator, Segment, build, trace


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("caching_allocator"))


class AnyAllocator(Protocol):
    def allocate(self, size: int, stream: int) -> int: ...
    def release(self, allocation: int) -> None: ...
    def record_stream(self, allocation: int, stream: int) -> None: ...
    def synchronize(self) -> None: ...
    def empty_cache(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def snapshot(self) -> list[Segment]: ...


@dataclass(frozen=True)
class Case:
    seed: int
    streams: int
    steps: int = 1500
    options: dict[str, float] = field(default_factory=dict)


CASES = {
    "defaults": Case(1, 1),
    "three streams": Case(2, 3),
    "capacity": Case(3, 2, options={"capacity": 5376 * MB}),
    "expandable": Case(4, 1, options={"expandable_segments": 1, "total_memory": 64 * GB}),
    "expandable, capacity": Case(
        5,
        2,
        options={"expandable_segments": 1, "capacity": 5312 * MB, "total_memory": 6 * GB, "event_lag": 0},
    ),
    "max_split_size": Case(
        6,
        2,
        options={"max_split_size": 40 * MB, "max_non_split_rounding_size": 30 * MB, "capacity": 3776 * MB},
    ),
    "roundup": Case(
        7, 2, options={"roundup_power2_divisions": 8, "large_segment_size": 32 * MB, "event_lag": -1}
    ),
    "garbage collection": Case(
        8,
        2,
        options={"garbage_collection_threshold": 0.6, "allowed_memory": 5056 * MB, "total_memory": 64 * GB},
    ),
}

FIGURES = (
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "active_bytes.all.peak",
    "requested_bytes.all.allocated",
    "num_device_alloc",
    "num_device_free",
    "num_alloc_retries",
)

# The same traces through the allocator of the CUDA build of torch 2.13.0 (libc10_cuda.so), on a CUDA runtime
# that only counts: cudaMalloc and cuMemAddressReserve give out ascending addresses from 0x7f << 40 and fail
# beyond the capacity, and events complete as `event_lag` says. The last number is the checksum of `run`.
EXPECTED: dict[str, tuple[int, ...]] = {
    "defaults": (4466136064, 4798283776, 4466136064, 16877442882, 72, 72, 0, 2707632535),
    "three streams": (4510513664, 5683281920, 4513253376, 16954652481, 105, 105, 0, 951788269),
    "capacity": (4821411840, 5622464512, 4848188416, 16456519913, 76, 76, 2, 441728675),
    "expandable": (4525114880, 4857004032, 4525114880, 17628898351, 87, 8, 0, 1900132614),
    "expandable, capacity": (5011776000, 5570035712, 5011776000, 16104522285, 120, 49, 1, 3556255336),
    "max_split_size": (3778854912, 3957325824, 3778854912, 15268888124, 133, 133, 1, 1467321662),
    "roundup": (3601300480, 3854565376, 3601300480, 15007292024, 83, 83, 0, 984914181),
    "garbage collection": (4848508416, 5282725888, 4848508416, 14750770941, 108, 108, 0, 2412195634),
}


def digest_update(digest: int, allocator: AnyAllocator) -> int:
    """Takes in all statistics and blocks, except what depends on the order in which streams are looked at:
    the history of inactive_split, and the former contents of free blocks."""
    stats = allocator.stats()
    words = [
        f"{name} {value}"
        for name, value in stats.items()
        if not name.startswith("inactive_split") or name.endswith(".current")
    ]
    for segment in allocator.snapshot():
        words.append(
            f"{segment.address} {segment.size} {segment.stream} {segment.small} {segment.expandable}"
        )
        for block in segment.blocks:
            requested = 0 if block.state == "inactive" else block.requested
            words.append(f"{block.offset} {block.size} {requested} {block.state}")
    return zlib.crc32("\n".join(words).encode(), digest)


def run(allocator: AnyAllocator, case: Case) -> tuple[int, ...]:
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
    assert stats["reserved_bytes.all.current"] == stats["num_ooms"] == 0
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
    current = {
        name.removesuffix(".current"): value for name, value in stats.items() if name.endswith(".current")
    }
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
        "capacity": st.integers(0, 300 * MB),
        "total_memory": st.sampled_from([64 * MB, GB]),
        "allowed_memory": st.integers(0, 300 * MB),
        "garbage_collection_threshold": st.sampled_from([0.3, 0.8]),
    },
)


@given(operations=operations, options=option_sets)
@examples(150)
def test_invariants(
    library: ctypes.CDLL, operations: list[tuple[str, int, int]], options: dict[str, float]
) -> None:
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
        limits = [options[name] for name in ("capacity", "allowed_memory") if name in options]
        assert allocator["num_ooms"] or allocator["reserved_bytes"] <= min(limits, default=GB * GB)
    allocator.release(*live)
    allocator.empty_cache()
    check(allocator)
    assert allocator.snapshot() == []
    assert allocator["reserved_bytes"] == allocator["requested_bytes"] == allocator["inactive_split"] == 0


@given(operations=operations)
@examples(50)
def test_all_merges_when_all_is_released(
    library: ctypes.CDLL, operations: list[tuple[str, int, int]]
) -> None:
    allocator = Allocator(library)
    live = [
        allocator.allocate(size, stream) for operation, size, stream in operations if operation == "allocate"
    ]
    reserved = allocator["reserved_bytes"]
    allocator.release(*live)
    assert all([block.state for block in segment.blocks] == ["inactive"] for segment in allocator.snapshot())
    assert allocator["reserved_bytes"] == reserved
    assert allocator["allocated_bytes"] == allocator["inactive_split_bytes"] == 0

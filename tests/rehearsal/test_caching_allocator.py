"""The model of PyTorch's CUDA caching allocator: cases worked out by hand from its rules."""

from __future__ import annotations

import ctypes

import pytest

from .caching_allocator import GB, KB, MB, Allocator, build


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
    allocator.release(
        blocks[1], blocks[2]
    )  # bytes 11.5 to 34.5 MiB: only one whole page (20 to 40) is not free
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
    assert allocator["oversize_segments.current"] == 2


def test_large_segment_size(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, large_segment_size=32 * MB)
    allocator.allocate(9 * MB)
    assert allocator["reserved_bytes"] == 32 * MB
    allocator.allocate(24 * MB)  # not below 10 MiB: a segment of its own
    assert allocator["reserved_bytes"] == 56 * MB


def test_garbage_collection(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, garbage_collection_threshold=0.5, allowed_memory=200 * MB)
    old, new = allocator.allocate(60 * MB), allocator.allocate(50 * MB)
    allocator.release(old)
    for _ in range(5):  # `old` ages, `new` is used
        allocator.release(new)
        new = allocator.allocate(50 * MB)
    allocator.allocate(70 * MB)  # 110 MiB are more than half of the allowed 200
    assert allocator["reserved_bytes"] == 120 * MB
    assert allocator["num_alloc_retries"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"roundup_power2_divisions": 3},
        {"garbage_collection_threshold": 1.0},
        {"max_split_size": 19 * MB},
        {"large_segment_size": 10 * MB},
        {"large_segment_size": 32 * MB, "max_split_size": 24 * MB},
        {"max_non_split_rounding_size": 19 * MB},
        {"event_lag": -2},
    ],
)
def test_refused_options(library: ctypes.CDLL, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="options refused"):
        Allocator(library, **options)


def test_empty_allocation_is_refused(library: ctypes.CDLL) -> None:
    with pytest.raises(ValueError, match="size refused"):
        Allocator(library).allocate(0)


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
    for stream in (1, 1, 2):
        allocator.release(allocator.allocate(512))
        assert allocator["active"] == 1
        allocator.synchronize(stream)
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
    assert allocator["num_sync_all_streams"] == 1


# ---- too little memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("expandable", [0, 1])
def test_cached_memory_is_released_before_failing(library: ctypes.CDLL, expandable: int) -> None:
    allocator = Allocator(library, capacity=50 * MB, expandable_segments=expandable)
    block = allocator.allocate(40 * MB, stream=1)
    allocator.record_stream(block, 2)
    allocator.release(block)
    allocator.allocate(24 * MB)
    assert (allocator["num_alloc_retries"], allocator["num_ooms"]) == (1, 0)
    assert allocator["reserved_bytes"] == (40 if expandable else 24) * MB


@pytest.mark.parametrize("expandable", [0, 1])
def test_out_of_memory_goes_on_without_limit(library: ctypes.CDLL, expandable: int) -> None:
    allocator = Allocator(library, capacity=100 * MB, allowed_memory=90 * MB, expandable_segments=expandable)
    held = [allocator.allocate(60 * MB) for _ in range(2)]
    assert (allocator["num_alloc_retries"], allocator["num_ooms"]) == (1, 1)
    held.append(allocator.allocate(600 * MB))  # more than the address space of the first expandable segment
    assert allocator["num_ooms"] == 1
    assert allocator["allocated_bytes"] == allocator["reserved_bytes"] == 720 * MB
    allocator.release(*held)
    allocator.empty_cache()
    assert allocator["reserved_bytes"] == 0


def test_oversize_blocks_are_released_first(library: ctypes.CDLL) -> None:
    allocator = Allocator(library, capacity=250 * MB, max_split_size=64 * MB)
    blocks = [allocator.allocate(size * MB) for size in (70, 100, 30)]
    allocator.release(*blocks)
    allocator.allocate(120 * MB)  # no single block helps: the largest two go, the 30 MiB stay
    assert allocator["num_alloc_retries"] == 0
    assert allocator["reserved_bytes"] == 150 * MB

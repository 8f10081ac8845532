"""Peak memory on CPU."""

from __future__ import annotations

from zerokit.training.progress import PeakMemory

SIZE = 200 * 2**20


def test_memory_that_was_freed_again_counts() -> None:
    memory = PeakMemory(cuda=False)
    memory.start()
    block = b"x" * SIZE
    del block
    assert 0.95 * SIZE < memory.read() < 1.5 * SIZE


def test_memory_from_before_the_measurement_does_not_count() -> None:
    memory = PeakMemory(cuda=False)
    memory.start()
    block = b"x" * SIZE
    memory.start()
    assert memory.read() < 0.5 * SIZE
    del block
    memory.start()  # the peak is now far above what is in use
    assert memory.read() < 0.5 * SIZE

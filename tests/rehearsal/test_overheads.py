from __future__ import annotations

import pytest

from zerokit.hardware.cluster import Cluster
from zerokit.rehearsal.report.analysis import overheads
from zerokit.units import GIB


def _communication(num_gpus: int, group_sizes: set[int] | None = None) -> tuple[int, int]:
    line = overheads(Cluster(num_gpus), group_sizes or {num_gpus})[1]
    return line.low_bytes, line.high_bytes


@pytest.mark.parametrize("num_gpus", [1, 2, 8, 64])
def test_every_line_is_a_span_with_a_source(num_gpus: int) -> None:
    for line in overheads(Cluster(num_gpus), {num_gpus}):
        assert 0 <= line.low_bytes < line.high_bytes
        assert line.source


def test_the_context_is_always_there() -> None:
    context = overheads(Cluster(1), set())[0]
    assert context.name == "CUDA context"
    assert context.low_bytes == pytest.approx(0.47 * GIB, abs=1)
    assert context.high_bytes == pytest.approx(0.92 * GIB, abs=1)


def test_a_single_gpu_connects_to_nobody() -> None:
    low, high = _communication(1)
    assert low == 0
    assert high < _communication(2)[1]


def test_more_communicators_hold_more_buffers() -> None:
    one = _communication(64, {64})
    two = _communication(64, {64, 8, 1})
    assert two[0] == 2 * one[0]
    assert two[1] > one[1]
    assert one[1] == pytest.approx(1.45 * GIB, abs=1)

"""A machine whose figures are known, calibrated: its file prices what was measured as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zerokit.calibration import calibrate as calibration
from zerokit.calibration import python
from zerokit.calibration.autograd import AutogradSeconds
from zerokit.calibration.collectives import Measured
from zerokit.calibration.kernels import Kernels, Product
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.hardware_file import read_hardware
from zerokit.hardware.prices.attention import AttentionCurve
from zerokit.hardware.prices.prices import Prices

pytestmark = pytest.mark.torch

RATE, BANDWIDTH, COPY, ADAM = 100e9, 20e9, 10e9, 7e9
"""Operations, and bytes, per second."""


class Known(Kernels):
    """Products reach RATE, less where a side is short; attention a quarter of it."""

    def _of_shape(self, m: int, n: int, k: int, dtype: str, layouts: Any) -> Iterator[Any]:
        for layout in layouts:
            share = 0.5 if min(m, n) < 512 else 1.0
            yield Product(layout, m, n, k, 2 * m * n * k / (RATE * share))

    def attention(self, dtype: str, peak: float) -> Any:
        return AttentionCurve(forward=(4.0, 0, 0, 0, 0), backward=(2.0, 0, 0, 0, 0))

    def bandwidth(self) -> float:
        return BANDWIDTH

    def passes(self) -> Any:
        return {"layer_norm": 3.0, "softmax": 2.0}

    def launch(self) -> float:
        return 2e-6

    def copies(self) -> Any:
        return {"h2d": COPY, "d2h": COPY, "pageable": COPY / 2}


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prices:
    """Of the machine's processor, two ranks of one thread each."""
    for name, found in {
        "Kernels": Known,
        "python_seconds": lambda: 3e-7,
        "autograd_seconds": lambda: AutogradSeconds(view=1e-6, node_made=2e-6, node_run=3e-6),
        "adam_bytes_per_second": lambda: ADAM,
        "between": lambda *machine: Measured(start=1e-4, bus=1e9),
    }.items():
        monkeypatch.setattr(calibration, name, found)
    monkeypatch.setattr(calibration.os, "cpu_count", lambda: 2)
    file = tmp_path / "machine.json"
    calibration.calibrate_into(file, "cpu", 2, 1)
    hardware = read_hardware(file)
    return Prices(Cluster(2, gpu=hardware.gpu), hardware.figures)


def test_what_was_measured_is_priced_as_it_was(prices: Prices) -> None:
    for dtype in ("bfloat16", "float32"):
        assert prices.matmul(1024, 512, 1024, dtype=dtype) == pytest.approx(2 * 2**29 / RATE, rel=0.05)
        assert prices.matmul(64, 4096, 1024, dtype=dtype) == pytest.approx(4 * 2**28 / RATE, rel=0.2)
    attention = ("flash_attention_2", False, 2, 4, 4, 1024, 1024, 64, False)
    assert prices.attention(*attention) == pytest.approx(4 * 4 * 8 * 2**20 * 64 / RATE)
    assert prices.memory_bound(2**30) == pytest.approx(2**30 / BANDWIDTH, rel=1e-3)
    assert prices.memory_bound(2**30, "softmax") == pytest.approx(2 * 2**30 / BANDWIDTH, rel=1e-3)
    assert prices.copy("h2d", 2**30) == pytest.approx(2**30 / COPY, rel=1e-3)
    assert prices.copy("d2h", 2**30, pinned=False) == pytest.approx(2 * 2**30 / COPY, rel=1e-3)
    assert prices.collective("all_gather", 2**30, 2) == pytest.approx(2**29 / 1e9, rel=0.01)
    assert prices.collective("all_reduce", 4, 2) == pytest.approx(1e-4, rel=0.3)
    # Each rank updates with its own thread, beside the other.
    assert prices.cpu_adam(10**6) == pytest.approx(28e6 / ADAM)
    assert [prices.launch("aten::mm"), prices.launch("aten::t"), prices.python_call()] == [2e-6, 1e-6, 3e-7]
    assert [prices.autograd_node("made"), prices.autograd_node("run")] == [2e-6, 3e-6]


def test_a_processor_in_the_place_of_a_card_is_waited_for(prices: Prices) -> None:
    assert prices.waits
    assert prices.gpu.platform == "cpu"
    assert {"matmul", "attention", "memory_bound", "collective"} <= prices.measured.keys()


def test_a_card_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match="torch finds 0 cards here"):
        calibration.calibrate_into(tmp_path / "none.json", "cuda", None, None)


def test_the_calls_of_a_program_are_counted_each() -> None:
    def leaf() -> None:
        pass

    assert python.calls_of(lambda: [leaf() for _ in range(3)]) in (
        4,
        5,
    )  # before Python 3.12 the list has a function, too


@pytest.mark.parametrize(
    ("kernels", "where"),
    [
        (
            {"matmul": {"bf16": {"shorter": [0], "longer": [0], "depth": [0], "layouts": {}}}},
            "kernels.matmul.bf16",
        ),
        ({"attention": {"forward": [-1, 0, 0, 0, 0], "backward": [1, 0, 0, 0, 0]}}, "kernels.attention"),
        ({"attention": {"forward": [1, 0, 0, 0, 1e99], "backward": [1, 0, 0, 0, 0]}}, "kernels.attention"),
        ({"matmul": {"int3": {}}}, "kernels.matmul.int3"),
        ([], "kernels"),
    ],
)
def test_curves_of_another_form_are_refused(kernels: Any, where: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"gpu": "H100", "kernels": kernels}), encoding="utf-8")
    with pytest.raises(ZerokitError, match=rf"\({where}"):
        read_hardware(file)

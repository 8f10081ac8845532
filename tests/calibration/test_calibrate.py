"""A machine calibrated: its file costs what was measured as it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.calibration import calibrate as calibration
from zerokit.calibration import collectives, host, kernels, measure
from zerokit.calibration.collectives import Measured
from zerokit.calibration.fits import compute_bound_rows, fit_matmul_curve, flatten_curve
from zerokit.calibration.host import AutogradSeconds
from zerokit.calibration.kernels import Kernels, Matmul, Sizes
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.attention import AttentionCurve
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.hardware.hardware_file import read_hardware

pytestmark = pytest.mark.torch

BUSES = {"all_gather": 1e9, "all_reduce": 1.5e9, "reduce_scatter": 0.75e9}
"""Bytes per second of a link."""
RATE, BANDWIDTH, COPY, ADAM = 100e9, 20e9, 10e9, 7e9
"""Operations, and bytes, per second."""


class Known(Kernels):
    """Products reach RATE, less where a side is short; attention a quarter of it, in fp32 a third."""

    def _measure_shape(self, m: int, n: int, k: int, dtype: str, layouts: Any) -> Iterator[Any]:
        for layout in layouts:
            share = 0.5 if min(m, n) < 512 else 1.0
            yield Matmul(layout, m, n, k, 2 * m * n * k / (RATE * share))

    def attention(self, dtype: str, peak: float, multiprocessors: int) -> Any:
        costs = 3.0 if dtype == "float32" else 4.0
        return AttentionCurve(forward=(costs, 0, 0, 0, 0), backward=(2.0, 0, 0, 0, 0))

    def bandwidth(self) -> float:
        return BANDWIDTH

    def passes(self) -> Any:
        return {"layer_norm": 3.0, "softmax": 2.0, "in_place": 0.5}

    def launch(self) -> float:
        return 2e-6

    def smallest_kernel(self) -> float:
        return 2e-6

    def copies(self) -> Any:
        return {"h2d": COPY, "d2h": COPY, "pageable": COPY / 2}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is measured takes what is known."""
    for name, found in {
        "Kernels": Known,
        "python_seconds": lambda: 3e-7,
        "autograd_seconds": lambda: AutogradSeconds(view=1e-6, node_made=2e-6, node_run=3e-6),
        "adam_bytes_per_second": lambda device, ranks: ranks * ADAM,
        "adam_bytes_per_thread": lambda device, ranks: ADAM / 4,
        "collectives": lambda device, ranks, large: Measured(launch=1e-5, start=1e-4, buses=BUSES),
    }.items():
        monkeypatch.setattr(measure, name, found)
    # In this process, by one for all ranks.
    monkeypatch.setattr(calibration, "measure_machine", lambda machine: measure._measure(machine, Sizes()))
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)


def calibrated(folder: Path, device: str, ranks: int) -> CardCosts:
    """As the file has them that is written."""
    file = folder / "machine.json"
    calibration.calibrate(file, device, ranks, 1)
    hardware = read_hardware(file)
    return CardCosts(Cluster(ranks, gpu=hardware.gpu), hardware.figures)


@pytest.fixture
def costs(known: None, tmp_path: Path) -> CardCosts:
    """Of the machine's processor, two ranks of one thread each."""
    return calibrated(tmp_path, "cpu", 2)


def test_what_was_measured_is_timed_as_it_was(costs: CardCosts) -> None:
    for dtype in ("bfloat16", "float32"):
        assert costs.matmul(1024, 512, 1024, dtype=dtype) == pytest.approx(2 * 2**29 / RATE, rel=0.05)
        assert costs.matmul(64, 4096, 1024, dtype=dtype) == pytest.approx(4 * 2**28 / RATE, rel=0.2)
    attention = ("flash_attention_2", False, 2, 4, 4, 1024, 1024, 64, False)
    assert costs.attention(*attention) == pytest.approx(4 * 4 * 8 * 2**20 * 64 / RATE)
    assert costs.attention(*attention, dtype="float32") == pytest.approx(3 * 4 * 8 * 2**20 * 64 / RATE)
    assert costs.memory_bound(2**30) == pytest.approx(2**30 / BANDWIDTH, rel=1e-3)
    shares = {"softmax": 2, "aten::_fused_adamw_": 0.5, "aten::mul_.Tensor": 0.5, "aten::copy_": 1}
    for name, share in shares.items():
        assert costs.memory_bound(2**30, name) == pytest.approx(share * 2**30 / BANDWIDTH, rel=1e-3)
    assert costs.copy("h2d", 2**30) == pytest.approx(2**30 / COPY, rel=1e-3)
    assert costs.copy("d2h", 2**30, pinned=False) == pytest.approx(2 * 2**30 / COPY, rel=1e-3)
    for kind, bus in BUSES.items():
        moved = 2**30 if kind == "all_reduce" else 2**29
        assert costs.collective(kind, 2**30, 2) == pytest.approx(moved / bus, rel=0.01)
    assert costs.collective("all_reduce", 4, 2) == pytest.approx(1e-4, rel=0.3)
    # Each rank updates with its own threads, beside the other.
    assert costs.cpu_adam(10**6) == pytest.approx(28e6 / ADAM)
    assert costs.cpu_adam(10**6, threads=1) == pytest.approx(4 * 28e6 / ADAM)
    assert [costs.launch("aten::mm"), costs.launch("aten::t"), costs.python_call()] == [2e-6, 1e-6, 3e-7]
    assert [costs.autograd_node("made"), costs.autograd_node("run")] == [2e-6, 3e-6]
    assert costs.collective_launch() == 1e-5


def test_adam_is_measured_by_one_thread_of_each_rank_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    usual, seen = torch.get_num_threads(), []
    torch.set_num_threads(usual + 1)

    def adam(device: str, ranks: int) -> float:
        seen.append(torch.get_num_threads())
        return ranks * ADAM

    monkeypatch.setattr(kernels, "adam_bytes_per_second", adam)
    assert kernels.adam_bytes_per_thread("cpu", 4) == ADAM
    assert (seen, torch.get_num_threads()) == ([1], usual + 1)
    torch.set_num_threads(usual)


def test_a_processor_in_the_place_of_a_card_is_waited_for(costs: CardCosts) -> None:
    assert costs.waits
    assert costs.gpu.platform == "cpu"
    assert {"matmul", "attention", "memory_bound", "collective"} <= costs.measured.keys()


@pytest.mark.parametrize(
    ("card", "half"), [("H100-SXM", "bfloat16"), ("B200", "bfloat16"), ("V100-32GB", "float16"), ("T4", "float16")]
)
def test_a_card_of_the_catalogue_is_measured_in_what_it_trains_in(
    card: str, half: str, known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = 20e12
    for name, value in {"RATE": rate, "BANDWIDTH": 2e12}.items():
        monkeypatch.setitem(globals(), name, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: find_gpu(card).torch_name)
    costs = calibrated(tmp_path, "cuda", 8)
    assert costs.gpu == find_gpu(card)
    assert costs.matmul(1024, 512, 1024, dtype=half) == pytest.approx(2 * 2**29 / rate, rel=0.05)
    assert costs.cpu_adam(10**6) == pytest.approx(28e6 / ADAM)


def test_what_is_lost_in_noise_is_left_to_the_catalogue(
    known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "autograd_seconds", lambda: AutogradSeconds(1e-6, 0.0, 3e-6))
    costs = calibrated(tmp_path, "cpu", 2)
    catalogue = CardCosts(Cluster(2, gpu=find_gpu("H100")))
    assert costs.autograd_node("made") == catalogue.autograd_node("made")
    assert costs.autograd_node("run") == 3e-6


def test_a_slow_processor_keeps_its_rate(known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RATE", 5e9)
    monkeypatch.setattr(Known, "bandwidth", lambda self: 2e9)
    costs = calibrated(tmp_path, "cpu", 2)
    assert costs.matmul(1024, 512, 1024) == pytest.approx(2 * 2**29 / 5e9, rel=0.05)
    assert costs.memory_bound(2**30) == pytest.approx(2**30 / 2e9, rel=1e-3)


def test_a_curve_does_not_rise_where_nothing_was_measured() -> None:
    rows = [("TN", m, n, k, 0.1 * min(m, n, k) / 512) for m, n, k in product((64, 128, 512), repeat=3)]
    curve = flatten_curve(fit_matmul_curve(rows, 0.1), rows)
    for side in (curve.shorter, curve.longer, curve.depth):
        assert side[0] < side[1] < side[2] == side[-1] <= 1
    fitted = fit_matmul_curve(rows, 0.1)
    assert curve.share(512, 256, 128, 1, "TN") == pytest.approx(fitted.share(512, 256, 128, 1, "TN"), rel=1e-3)


def test_a_product_s_rate_is_without_its_start_and_not_that_of_its_bytes() -> None:
    peak, bandwidth, start = 1e14, 1e12, 2e-6

    def measured(m: int, n: int, k: int) -> float:
        """Share of the peak, of a card that multiplies at half of it."""
        flops = 2 * m * n * k
        return flops / peak / (start + max(2 * flops / peak, 2 * (m * n + n * k + m * k) / bandwidth))

    large, narrow, tiny = (4096, 4096, 4096), (8192, 8192, 16), (64, 64, 64)
    rows = [("TN", *sides, measured(*sides)) for sides in (large, narrow, tiny)]
    alone = compute_bound_rows(rows, peak, bandwidth, start)
    assert [tuple(row[1:4]) for row in alone] == [large]
    assert alone[0][4] == pytest.approx(0.5)
    assert compute_bound_rows(rows[1:], peak, bandwidth, start) == rows[1:]


def test_a_file_that_could_not_be_read_is_not_written(
    known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZerokitError, match="is written as JSON"):
        calibration.calibrate(tmp_path / "machine.txt", "cpu", 2, 1)
    monkeypatch.setattr(measure, "python_seconds", lambda: 60.0)
    with pytest.raises(ZerokitError, match=r"python_call.*far from what is known"):
        calibrated(tmp_path, "cpu", 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("card", "ranks", "buses", "reached"),
    [
        # NVLS: the switch adds, and other kinds are as fast as rings.
        (
            "H100-SXM",
            8,
            {"all_gather": 300e9, "all_reduce": 450e9, "reduce_scatter": 290e9},
            {(kind, 8): 300e9 for kind in ("all_gather", "broadcast", "send_recv")}
            | {("reduce_scatter", 8): 290e9, ("all_reduce", 8): 450e9, ("all_gather", 4): 300e9},
        ),
        # A bridge joins two; more than two go over PCIe, as the catalogue has it.
        (
            "A100-80GB-PCIe",
            2,
            dict.fromkeys(BUSES, 180e9),
            {("all_gather", 2): 180e9, ("all_reduce", 2): 180e9, ("all_gather", 4): 20e9},
        ),
    ],
)
def test_collectives_of_cards_are_timed_as_they_were_measured(
    card: str,
    ranks: int,
    buses: dict[str, float],
    reached: dict[tuple[Any, int], float],
    known: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "collectives", lambda device, ranks, large: Measured(1e-5, 1e-4, buses))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: find_gpu(card).torch_name)
    monkeypatch.setitem(globals(), "RATE", 20e12)
    monkeypatch.setitem(globals(), "BANDWIDTH", 1e12)
    costs = calibrated(tmp_path, "cuda", ranks)
    for (kind, of), bus in reached.items():
        # Of two sizes: their starts drop out.
        more = costs.collective(kind, 2**34, of) - costs.collective(kind, 2**33, of)
        share = {"all_reduce": 2 * (of - 1) / of, "broadcast": 1, "send_recv": 1}.get(kind, (of - 1) / of)
        assert 2**33 * share / more == pytest.approx(bus, rel=0.01), (kind, of)


def test_the_start_of_a_collective_is_no_part_of_its_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    def taking(share: float, bus: float) -> Any:
        return lambda whole, part: 1e-4 + share * 4 * len(whole) / bus

    shares = {"all_gather": 0.5, "all_reduce": 1.0, "reduce_scatter": 0.5}
    kinds = {kind: (taking(share, BUSES[kind]), share) for kind, share in shares.items()}
    monkeypatch.setattr(collectives, "_kinds", lambda ranks: kinds)
    monkeypatch.setattr(
        collectives, "_median_seconds", lambda call, clock, ends: 2e-5 if clock is time.thread_time else call()
    )
    monkeypatch.setattr(collectives, "mean_of_ranks", lambda own, ranks, device: own())
    found = collectives.collectives("cpu", 2, 2**17)
    assert found.buses == pytest.approx(BUSES)
    # Nor is the host's own work, which its clock has already.
    assert found.launch == 2e-5
    assert found.start == pytest.approx(8e-5, rel=0.1)


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 1.0), (3, 3.5)])
def test_cards_that_disturb_each_other_are_measured_so(
    ranks: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter([6, 1, 4, 2, 5, 3])
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1e3 * next(taken))
    cuda = {"Event": lambda enable_timing: event, "_sleep": lambda cycles: None, "synchronize": lambda: None}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(f"torch.cuda.{name}", stand_in)
    assert Kernels("cuda", ranks, Sizes())._own_seconds(lambda: None) == seconds


def test_an_unknown_card_has_its_multiprocessors(known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(total_memory=2**34, multi_processor_count=77)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A card of its own")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    multiprocessors = []
    measured = Known.attention
    monkeypatch.setattr(
        Known, "attention", lambda self, *given: multiprocessors.append(given[-1]) or measured(self, *given)
    )
    assert calibrated(tmp_path, "cuda", 8).gpu.multiprocessors == 77
    assert multiprocessors == [77, 77]


@pytest.mark.distributed
def test_what_measures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a folder with a file that is called as a module of Python.
    (tmp_path / "statistics.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    small = Sizes(sides=(64, 256), lengths=(32, 64, 128), moved=2**20, collective=2**23)
    monkeypatch.setattr(measure.measure_machine, "__defaults__", (small,))
    costs = calibrated(tmp_path, "cpu", 2)
    assert costs.measured.keys() == {"matmul", "attention", "memory_bound", "collective"}
    assert 256**3 * 2 / 1e14 < costs.matmul(256, 256, 256) < 1
    assert costs.collective("all_gather", 2**28, 2) > costs.collective("all_gather", 2**26, 2) > 0


def test_a_card_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match="torch finds 0 cards here"):
        calibration.calibrate(tmp_path / "none.json", "cuda", None, None)


def test_the_calls_of_a_program_are_counted_each() -> None:
    def leaf() -> None:
        pass

    # Before Python 3.12 the list has a function, too.
    assert host.count_calls(lambda: [leaf() for _ in range(3)]) in (4, 5)


@pytest.mark.parametrize(
    ("kernels", "where"),
    [
        ({"matmul": {"bf16": {"shorter": [0], "longer": [0], "depth": [0], "layouts": {}}}}, "kernels.matmul.bf16"),
        (
            {"attention": {"fp32": {"forward": [-1, 0, 0, 0, 0], "backward": [1, 0, 0, 0, 0]}}},
            "kernels.attention.fp32",
        ),
        (
            {"attention": {"fp32": {"forward": [1, 0, 0, 0, 1e99], "backward": [1, 0, 0, 0, 0]}}},
            "kernels.attention.fp32",
        ),
        ({"matmul": {"int3": {}}}, "kernels.matmul.int3"),
        ([], "kernels"),
    ],
)
def test_curves_of_another_form_are_refused(kernels: Any, where: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"gpu": "H100", "kernels": kernels}), encoding="utf-8")
    with pytest.raises(ZerokitError, match=rf"\({where}"):
        read_hardware(file)

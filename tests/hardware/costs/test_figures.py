"""The figures behind the costs."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import REPOSITORY
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.gpus import find_gpu, gpus
from zerokit.units import GIB, MIB

TABLES: dict[str, Any] = json.loads(
    Path(REPOSITORY, "tools", "kernel_costs", "tables.json").read_text(encoding="utf-8")
)


def on(card: str, num_gpus: int = 8) -> CardCosts:
    return CardCosts(Cluster(num_gpus, gpu=find_gpu(card)))


def sections(data: Any) -> Iterator[dict[str, Any]]:
    """Every object of the file that holds figures."""
    if isinstance(data, dict):
        yield data
        for value in data.values():
            yield from sections(value)


def test_every_source_exists_and_is_used() -> None:
    data = dict(figures())
    sources = data.pop("sources")
    cited = " ".join(str(one.get("source", "")) for one in sections(data))
    assert sources.keys() - set(re.findall(r"[\w-]+", cited)) == set()
    for one in sections(data):
        if "source" in one:
            assert any(key in one["source"] for key in (*sources, "the middle", "above")), one


def test_every_figure_of_a_card_is_of_one_that_there_is() -> None:
    names = {gpu.name for gpu in gpus()}
    for one in sections(figures()):
        assert set(one.get("cards", {})) <= names
    assert {row[0] for row in TABLES["matmul"] + TABLES["attention"] + TABLES["collectives"]} <= names


@pytest.mark.parametrize(
    ("card", "median", "p90"),
    [("V100-16GB", 0.04, 0.17), ("A100-80GB-PCIe", 0.03, 0.12), ("B200", 0.07, 0.25), ("H200", 0.06, 0.22)],
)
def test_products_are_timed_as_they_were_measured(card: str, median: float, p90: float) -> None:
    costs, errors = on(card), []
    tensor_cores = "fp16" if card.startswith("V100") else "bf16"
    peak = find_gpu(card).tflops[tensor_cores] * 1e12
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[tensor_cores]
    for name, layout, m, n, k, share in TABLES["matmul"]:
        if name == card:
            measured = 2 * m * n * k / (peak * share)
            errors.append(abs(costs.matmul(m, n, k, dtype=dtype, layout=layout) / measured - 1))
    assert statistics.median(errors) < median
    assert sorted(errors)[len(errors) * 9 // 10] < p90


def test_a_card_without_a_curve_of_its_own_has_that_of_its_processor() -> None:
    h100, h200, gh200, pcie = (on(name) for name in ("H100", "H200", "GH200", "H100-PCIe"))
    assert h100.matmul(8192, 8192, 8192) == h200.matmul(8192, 8192, 8192) > gh200.matmul(8192, 8192, 8192)
    assert [one.measured.get("matmul") for one in (h100, h200, gh200, pcie)] == [*["many shapes"] * 3, None]
    # Long products of an L40S are bound by its power: they reach less than half of what an A100's curve has.
    assert on("L40S").matmul(16384, 8192, 8192) > 2 * 16384 * 8192**2 / 210e12


@pytest.mark.parametrize(("side", "tflops"), [(2048, 1011), (4096, 1217), (8192, 1290), (16384, 1377)])
def test_long_products_in_fp8_are_timed_as_they_were_measured(side: int, tflops: int) -> None:
    seconds = on("H100").matmul(side, side, side, dtype="float8_e4m3fn", layout="TN")
    assert 2 * side**3 / seconds / 1e12 == pytest.approx(tflops, rel=0.03)


@pytest.mark.parametrize(
    ("card", "kernel", "worst"),
    [
        ("A100-80GB-PCIe", "flash_attention_2", 0.1),
        ("H100-SXM", "flash_attention_2", 0.06),
        ("H100-SXM", "flash_attention_3", 0.12),
        ("H100-SXM", "cudnn", 0.12),
    ],
)
def test_attention_is_timed_as_it_was_measured(card: str, kernel: Any, worst: float) -> None:
    costs, count = on(card), 0
    for name, of_kernel, passes, causal, batch, heads, kv_heads, length, head_dim, tflops, _ in TABLES["attention"]:
        if (name, of_kernel) != (card, kernel):
            continue
        shape = (batch, heads, kv_heads, length, length, head_dim, causal)
        directions = {"forward": [False], "backward": [True], "both": [False, True]}[passes]
        seconds = sum(costs.attention(kernel, backward, *shape) for backward in directions)
        flops = 4 * batch * heads * length**2 * head_dim * (0.5 if causal else 1)
        measured = flops * sum(2.5 if backward else 1 for backward in directions) / (tflops * 1e12)
        assert abs(seconds / measured - 1) < worst
        count += 1
    assert count >= 28


@pytest.mark.parametrize(
    ("card", "kernel", "tflops"), [("H200", "flash_attention_3", 447), ("B200", "flash_attention_4", 834)]
)
def test_attention_in_a_step_is_timed_as_it_was_measured(card: str, kernel: Any, tflops: int) -> None:
    """Forward and backward of Llama 8B at 8,192 tokens: ml-engineering, insights/when-to-upgrade-gpus."""
    shape = (1, 32, 8, 8192, 8192, 128, True)
    seconds = sum(on(card).attention(kernel, backward, *shape) for backward in (False, True))
    assert 6 * 32 * 8192**2 * 128 / seconds / 1e12 == pytest.approx(tflops, rel=0.06)


def test_flash_attention_4_is_no_slower_than_3_and_as_fast_on_hopper() -> None:
    shape = (1, 32, 8, 32768, 32768, 128, True)
    for backward in (False, True):
        h100, b200 = (
            [on(card).attention(kernel, backward, *shape) for kernel in ("flash_attention_3", "flash_attention_4")]
            for card in ("H100", "B200")
        )
        assert h100[0] == h100[1]
        assert b200[1] < b200[0] / 2


def test_an_older_kernel_gains_no_more_by_a_newer_card_than_flash_attention_2() -> None:
    cards = ("A100-80GB-PCIe", "A100-80GB-SXM", "H100", "H200", "B200", "RTX 4090")
    shape = (4, 32, 32, 4096, 4096, 128, True)
    for backward in (False, True):
        longer = [
            on(card).attention("efficient", backward, *shape)
            / on(card).attention("flash_attention_2", backward, *shape)
            for card in cards
        ]
        assert longer == pytest.approx([longer[0]] * len(cards))
        assert longer[0] > 1.5


def test_large_all_reduces_are_timed_as_they_were_measured() -> None:
    for card, kind, ranks, nodes, num_bytes, bus, _ in TABLES["collectives"]:
        if num_bytes >= GIB:
            total = ranks * nodes
            measured = 2 * (total - 1) / total * num_bytes / (bus * 1e9)
            assert on(card, total).collective(kind, num_bytes, ranks, nodes) == pytest.approx(measured, rel=0.11)


@pytest.mark.parametrize(("name", "like", "slower"), [("A800", "A100-80GB-SXM", 1.5), ("H800", "H100", 2.25)])
def test_cards_with_less_nvlink_differ_in_collectives_alone(name: str, like: str, slower: float) -> None:
    less, more = on(name), on(like)
    assert less.collective("all_gather", GIB, 8) == pytest.approx(
        slower * more.collective("all_gather", GIB, 8), rel=0.01
    )
    assert less.matmul(4096, 4096, 4096) == more.matmul(4096, 4096, 4096)
    shape = (1, 32, 32, 4096, 4096, 128, True)
    assert less.attention("flash_attention_2", True, *shape) == more.attention("flash_attention_2", True, *shape)
    assert less.memory_bound(GIB) == more.memory_bound(GIB)
    assert less.measured.keys() >= more.measured.keys() - {"collective"}


def test_the_switch_helps_all_reduce_alone() -> None:
    h200 = on("H200")
    gather, scatter = (h200.collective(kind, GIB, 8) for kind in ("all_gather", "reduce_scatter"))
    assert gather == scatter
    # On rings an all-reduce is both of them.
    assert 0.7 < h200.collective("all_reduce", GIB, 8) / (gather + scatter) < 0.8


def test_few_of_the_gpus_that_a_switch_joins_reach_less_of_its_bus() -> None:
    for card, kind, ranks, nodes, num_bytes, bus, source in TABLES["collectives"]:
        if source == "aiconfigurator" and num_bytes > 2**28:
            rounds = 2 if kind == "all_reduce" else 1
            measured = rounds * (ranks - 1) / ranks * num_bytes / (bus * 1e9)
            seconds = on(card).collective(kind, num_bytes, ranks, nodes)
            assert seconds == pytest.approx(measured, rel=0.2)
    h100 = on("H100")
    per_rank = [h100.collective("all_gather", GIB, ranks) * ranks / (ranks - 1) for ranks in (2, 4, 6, 8)]
    assert per_rank == sorted(per_rank, reverse=True)
    assert per_rank[0] > 1.35 * per_rank[-1]


def test_bridges_join_two_cards_and_no_more() -> None:
    h100, pairs = on("H100"), on("H100-PCIe")
    times = [costs.collective("all_gather", GIB, ranks) for costs in (h100, pairs) for ranks in (2, 4)]
    assert times[1] < 2 * times[0]
    assert times[3] > 4 * times[2]


def test_nccl_takes_a_tree_for_little_over_many_nodes() -> None:
    # A ring's steps alone: 2 * 127 of them, 2 * 15 between nodes, take longer.
    costs = on("H100", 128)
    assert costs.collective("all_reduce", 4096, 8, 16) < 85e-6 + 100e-6
    assert costs.collective("all_gather", 4096, 8, 16) > 85e-6 + 100e-6


def test_copies_go_by_the_link_and_share_what_is_shared() -> None:
    h200, a100 = on("H200"), on("A100-80")
    assert GIB / h200.copy("h2d", GIB) / 1e9 == pytest.approx(55.4, rel=0.01)
    assert h200.copy("h2d", GIB, True, 8) == h200.copy("h2d", GIB)
    assert a100.copy("h2d", GIB, True, 8) == pytest.approx(2 * a100.copy("h2d", GIB), rel=0.01)
    assert h200.copy("d2h", GIB, pinned=False) == pytest.approx(2 * h200.copy("d2h", GIB), rel=0.01)
    assert h200.copy("nvme_read", GIB, True, 8) == pytest.approx(8 * GIB / 10e9, rel=0.01)
    assert h200.copy("d2d", GIB) == h200.memory_bound(2 * GIB)


def test_a_launch_a_view_and_what_goes_along_rows() -> None:
    costs = on("A100-80")
    assert costs.launch("aten::mm") == costs.launch("aten.add_.Tensor") == 1.63e-5 < costs.collective_launch()
    assert costs.launch("aten::view") == costs.launch("aten.transpose.int") < 3e-6
    assert costs.launch_spread.low * 1.63e-5 == pytest.approx(7e-6, rel=0.01)
    plain, softmax, norm = (
        costs.memory_bound(GIB, name) for name in ("", "aten::_softmax", "aten::native_layer_norm")
    )
    assert plain < softmax < norm < 1.5 * plain
    # Small kernels reach little of the bandwidth, large ones what was measured: 0.87.
    shares = [size / costs.memory_bound(size) / 2039e9 for size in (MIB, 8 * MIB, GIB)]
    assert shares[0] < 0.2 < shares[1] < 0.6 < shares[2] < 0.87


def test_adam_on_the_host_goes_by_bytes_and_by_the_ranks_beside_it() -> None:
    alone, of_eight = on("V100-32", 1), on("V100-32", 8)
    assert of_eight.cpu_adam(10**9) == 8 * alone.cpu_adam(10**9)
    assert alone.cpu_adam(10**9, "float32") == pytest.approx(28e9 / (256e9 * 0.2))
    assert alone.cpu_adam(10**9, "bfloat16") == alone.cpu_adam(10**9)


def test_few_threads_of_ranks_bound_what_the_host_does() -> None:
    alone, of_two, of_eight = (on("A100-80", ranks) for ranks in (1, 2, 8))
    assert alone.on_host(15e9, 1) == pytest.approx(1.0)
    assert alone.on_host(15e9, 2) == of_two.on_host(15e9, 2) / 2 * 2 == pytest.approx(0.5)
    # All cores reach no more of the memory than the 82 GB/s that were measured, and nor do as many threads.
    assert of_eight.on_host(82e9, 1) == of_eight.on_host(82e9) == pytest.approx(8.0)
    assert alone.cpu_adam(10**9, threads=1) == alone.on_host(28e9, 1) > alone.cpu_adam(10**9, threads=64)


def test_what_there_is_not_is_named() -> None:
    costs: Any = on("H100")
    with pytest.raises(ZerokitError, match=r"no attention kernel 'flash'\. Choose one of flash_attention_2,"):
        costs.attention("flash", False, 1, 8, 8, 128, 128, 64, True)
    with pytest.raises(ZerokitError, match=r"no collective 'gather'\. Choose one of all_gather,"):
        costs.collective("gather", 1, 8)

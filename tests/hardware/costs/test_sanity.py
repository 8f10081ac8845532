"""What no cost may do, on any card of the catalogue."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.collectives import COLLECTIVES, Collective
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.kernels import KERNELS, Kernel
from zerokit.hardware.costs.matmul import KNOTS, LAYOUTS
from zerokit.hardware.costs.names import element_bytes
from zerokit.hardware.gpus import Gpu, Link, find_gpu, gpus, some_gpu
from zerokit.units import GIB

CARDS = st.sampled_from(gpus())
SIDES = st.integers(1, 200_000)
FEW = st.integers(1, 300)
BYTES = st.integers(1, 2**36)
GROWTH = st.integers(0, 100_000)
DTYPES = ("float32", "bfloat16")

costs_of = {gpu: CardCosts(Cluster(64, gpu=gpu)) for gpu in gpus()}


@given(CARDS, SIDES, SIDES, SIDES, FEW, st.sampled_from(DTYPES))
def test_no_product_is_above_the_roofline(gpu: Gpu, m: int, n: int, k: int, batch: int, dtype: str) -> None:
    seconds = costs_of[gpu].matmul(m, n, k, batch, dtype)
    peak = max(gpu.tflops.values()) if dtype == "bfloat16" else gpu.tflops.get("fp32", max(gpu.tflops.values()))
    moved = batch * (m * k + k * n + m * n) * (4 if dtype == "float32" else 2)
    assert gpu.bandwidth_gb_s is not None
    assert seconds >= 2 * m * n * k * batch / (peak * 1e12)
    assert seconds >= moved / (gpu.bandwidth_gb_s * 1e9)


@given(
    CARDS, st.sampled_from(KERNELS), st.booleans(), st.booleans(), FEW, FEW, SIDES, st.sampled_from((64, 96, 128, 256))
)
def test_no_attention_is_above_the_roofline(
    gpu: Gpu, kernel: Kernel, backward: bool, causal: bool, batch: int, heads: int, length: int, head_dim: int
) -> None:
    seconds = costs_of[gpu].attention(kernel, backward, batch, heads, heads, length, length, head_dim, causal)
    flops = 4 * batch * heads * length**2 * head_dim * (2.5 if backward and kernel != "eager" else 1)
    assert seconds >= flops * (0.5 if causal else 1) / (max(gpu.tflops.values()) * 1e12)


@given(
    CARDS, st.tuples(SIDES, SIDES, SIDES, FEW), st.integers(0, 3), GROWTH, st.sampled_from((None, "TN", "NN", "NT"))
)
def test_a_larger_product_takes_no_less(gpu: Gpu, sizes: tuple[int, ...], side: int, growth: int, layout: Any) -> None:
    larger = [size + growth * (at == side) for at, size in enumerate(sizes)]
    costs = costs_of[gpu]
    assert costs.matmul(*larger, layout=layout) >= costs.matmul(*sizes, layout=layout) * (1 - 1e-12)


@given(
    CARDS,
    st.sampled_from(KERNELS),
    st.booleans(),
    st.booleans(),
    st.tuples(FEW, FEW, SIDES, SIDES),
    st.integers(0, 3),
    GROWTH,
)
def test_a_larger_attention_takes_no_less(
    gpu: Gpu, kernel: Kernel, backward: bool, causal: bool, sizes: tuple[int, ...], side: int, growth: int
) -> None:
    def seconds(batch: int, heads: int, q_len: int, k_len: int) -> float:
        return costs_of[gpu].attention(kernel, backward, batch, heads, heads, q_len, k_len, 128, causal)

    larger = [size + growth * (at == side) for at, size in enumerate(sizes)]
    assert seconds(*larger) >= seconds(*sizes) * (1 - 1e-12)


@given(CARDS, st.sampled_from(COLLECTIVES), BYTES, BYTES, st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4, 8)))
def test_collectives_grow_with_bytes_and_ranks(
    gpu: Gpu, kind: Collective, num_bytes: int, more: int, ranks: int, nodes: int
) -> None:
    costs = costs_of[gpu]
    seconds = costs.collective(kind, num_bytes, ranks, nodes)
    assert costs.collective(kind, num_bytes + more, ranks, nodes) >= seconds
    assert costs.collective(kind, num_bytes, ranks, nodes * 2) >= seconds
    if nodes == 1:
        assert costs.collective(kind, num_bytes, ranks * 2, 1) >= seconds or ranks == 8
    if ranks * nodes <= 8:
        assert seconds >= costs.collective(kind, num_bytes, ranks * nodes, 1)


PARTS = ("tflops", "bandwidth", "link", "host link", "network")


def faster(gpu: Gpu, factor: float, parts: Set[str]) -> Gpu:
    """A card of the same name, some of which is so much faster."""

    def link(one: Link | None, name: str) -> Link | None:
        return one if one is None or name not in parts else replace(one, gb_s=one.gb_s * factor)

    assert gpu.bandwidth_gb_s is not None
    node = gpu.node
    if node is not None and node.network_gbit_s is not None and "network" in parts:
        node = replace(node, network_gbit_s=math.ceil(node.network_gbit_s * factor))
    return replace(
        gpu,
        bandwidth_gb_s=gpu.bandwidth_gb_s * (factor if "bandwidth" in parts else 1),
        tflops={dtype: rate * (factor if "tflops" in parts else 1) for dtype, rate in gpu.tflops.items()},
        link=link(gpu.link, "link"),
        host_link=link(gpu.host_link, "host link"),
        node=node,
    )


@given(
    CARDS,
    st.floats(1, 4),
    st.sets(st.sampled_from(PARTS), min_size=1),
    st.tuples(SIDES, SIDES, SIDES),
    st.sampled_from(KERNELS),
    BYTES,
    st.sampled_from(COLLECTIVES),
)
def test_a_card_of_which_something_is_faster_is_never_slower(
    gpu: Gpu,
    factor: float,
    parts: set[str],
    sides: tuple[int, int, int],
    kernel: Kernel,
    num_bytes: int,
    kind: Collective,
) -> None:
    slow, fast = costs_of[gpu], CardCosts(Cluster(64, gpu=faster(gpu, factor, parts)))
    for call in (
        lambda costs: costs.matmul(*sides),
        lambda costs: costs.attention(kernel, False, 1, 32, 8, sides[0], sides[0], 128, True),
        lambda costs: costs.memory_bound(num_bytes),
        lambda costs: costs.copy("h2d", num_bytes),
        lambda costs: costs.collective(kind, num_bytes, 8),
        lambda costs: costs.collective(kind, num_bytes, 8, 2),
    ):
        assert call(fast) <= call(slow) * (1 + 1e-12)


@given(CARDS, BYTES, st.sampled_from(COLLECTIVES))
def test_nothing_moves_faster_than_its_link_and_a_rank_alone_uses_none(
    gpu: Gpu, num_bytes: int, kind: Collective
) -> None:
    costs = costs_of[gpu]
    if gpu.host_link is not None:
        assert costs.copy("h2d", num_bytes) >= num_bytes / (1e9 * gpu.host_link.gb_s)
    if gpu.link is not None:
        of_eight = costs.collective("all_gather", num_bytes, 8)
        assert of_eight >= num_bytes * 7 / 8 / (1e9 * gpu.link.gb_s)
    if gpu.node is not None and gpu.node.network_gbit_s is not None:
        of_two_nodes = costs.collective("all_gather", num_bytes, 8, 2)
        assert of_two_nodes >= num_bytes / 2 / (1e9 * gpu.node.network_gbit_s / 8)
    assert costs.collective(kind, num_bytes, 1) in (0.0, costs.copy("d2d", num_bytes))


@given(CARDS, BYTES, st.integers(1, 256))
def test_the_host_gains_by_threads_until_its_memory_is_used(gpu: Gpu, num_bytes: int, threads: int) -> None:
    costs = costs_of[gpu]
    by_more = costs.on_host(num_bytes, threads + 1)
    assert costs.on_host(num_bytes) <= by_more <= costs.on_host(num_bytes, threads)


def test_newer_cards_of_a_line_are_faster() -> None:
    line = [costs_of[find_gpu(name)] for name in ("V100-32", "A100-80", "H100", "B200")]
    for call in (
        lambda costs: costs.matmul(4096, 14336, 4096, dtype="float16"),
        lambda costs: costs.attention("flash_attention_2", True, 4, 32, 8, 4096, 4096, 128, True, "float16"),
        lambda costs: costs.memory_bound(GIB),
        lambda costs: costs.collective("all_gather", GIB, 8),
        lambda costs: costs.copy("d2h", GIB),
    ):
        seconds = [call(costs) for costs in line]
        assert seconds == sorted(seconds, reverse=True)


def test_unmeasured_costs_have_a_note_and_a_wider_range() -> None:
    h100, rtx, v100, t4, gh200 = (
        CardCosts(Cluster(8, gpu=find_gpu(name))) for name in ("H100", "RTX 4090", "V100-32", "T4", "GH200")
    )
    alike = "with times as on cards that are alike"
    every = "matrix products, attention kernels, kernels bound by memory"
    assert h100.assumptions == ()
    assert rtx.assumptions[0] == f"{every}, collectives: not measured on RTX 4090, {alike}"
    alone = CardCosts(Cluster(1, gpu=rtx.gpu))
    assert alone.assumptions == (f"{every}: not measured on RTX 4090, {alike}",)
    assert gh200.assumptions[0] == f"kernels bound by memory, collectives: not measured on GH200, {alike}"
    assert v100.assumptions == (f"attention kernels: not measured on V100-32GB, {alike}",)
    assert t4.assumptions[0].startswith("matrix products in 16 bits, attention kernels")
    assert t4.spread("matmul") == rtx.spread("matmul")
    for kind in ("matmul", "attention", "memory_bound", "collective"):
        known, borrowed = h100.spread(kind), rtx.spread(kind)
        assert borrowed.low <= known.low < 1 < known.high < borrowed.high


def test_elements_have_the_bytes_of_their_dtype_and_the_rate_of_their_kernels() -> None:
    sizes = {
        **{"torch.bfloat16": 2, "float32": 4, "tf32": 4, "complex64": 8, "complex128": 16, "int64": 8},
        **{"bool": 1, "int8": 1, "float8_e4m3fn": 1, "float4_e2m1fn_x2": 1},
    }
    assert {dtype: element_bytes(dtype) for dtype in sizes} == sizes
    h100, a100 = (costs_of[find_gpu(name)] for name in ("H100", "A100-80"))
    side = (8192, 8192, 8192)
    assert h100.matmul(*side, dtype="int8") == h100.matmul(*side, dtype="float8_e5m2")
    assert h100.matmul(*side, dtype="int8") < h100.matmul(*side, dtype="bfloat16")
    assert a100.matmul(*side, dtype="int8") == a100.matmul(*side, dtype="bfloat16")


def test_a_dtype_takes_the_curve_of_those_whose_rate_it_has() -> None:
    def curve(at: float) -> dict[str, Any]:
        sides = dict.fromkeys(("shorter", "longer", "depth"), (at,) * len(KNOTS))
        return {**sides, "layouts": dict.fromkeys(LAYOUTS, 0.0)}

    own = {"matmul": {"bf16": curve(-0.1), "fp32": curve(-2.0)}}
    cards = ((find_gpu(name), figures() | {"kernels": own}) for name in ("H100", "V100-32GB"))
    h100, v100 = (CardCosts(Cluster(1, gpu=gpu), changed) for gpu, changed in cards)

    def slower(costs: CardCosts, dtype: str) -> float:
        """By how much than at the best share of its rate, in e-folds."""
        rate, best = costs._rate(dtype)
        seconds = costs.matmul(4096, 4096, 4096, dtype=dtype) - costs.matmul(0, 1, 1)
        return math.log(seconds * rate * best / 2 / 4096**3)

    for dtype in ("bfloat16", "float16", "tf32", "float8_e4m3fn", "fp8", "int8"):
        assert slower(h100, dtype) == pytest.approx(0.3)
    for costs, dtype in ((h100, "float32"), (v100, "bfloat16"), (v100, "tf32"), (v100, "float32")):
        assert slower(costs, dtype) == pytest.approx(6.0)


def test_a_card_of_unknown_speed_is_refused() -> None:
    for gpu in (None, some_gpu(None, 24 * GIB)):
        with pytest.raises(ZerokitError, match=r"--gpu: the speed of .* is not known\. Name a card"):
            CardCosts(Cluster(8, gpu=gpu))

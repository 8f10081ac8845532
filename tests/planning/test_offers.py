"""What can be rented, and what the user has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.planning.offers import Offers, offers
from zerokit.planning.prices import load_prices
from zerokit.units import GIB

FILES = Path(__file__).with_name("prices")


def _found(chosen: Offers) -> list[tuple[int, int, float | None]]:
    return [(offer.num_gpus, offer.gpus_per_node, offer.network_gbit_s) for offer in chosen.offered]


def test_parts_of_a_machine_and_whole_nodes_are_offered_on_two_assumed_networks() -> None:
    chosen = offers(load_prices(), names=["h100"], max_gpus=24)
    one = [(number, number, None) for number in (1, 2, 4, 8)]
    nodes = [(number, 8, speed) for number in (16, 24) for speed in (100.0, 3200.0)]
    assert _found(chosen) == one + nodes
    assert [offer.is_network_assumed for offer in chosen.offered] == [False] * 4 + [True] * 4
    assert {offer.usd_per_gpu_hour for offer in chosen.offered} == {2.95}
    assert chosen.offered[-1].cluster.known_host_bytes == 1800 * GIB
    assert chosen.offered[0].cluster.known_host_bytes == 225 * GIB


def test_each_size_of_machine_has_its_own_price(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("gpu,num_gpus,usd_per_hour\nH100,1,2.00\nH100,8,80.00\n")
    chosen = offers(load_prices((), file), max_gpus=8)
    assert {offer.num_gpus: offer.usd_per_gpu_hour for offer in chosen.offered} == {1: 2.0, 8: 10.0}


def test_a_machine_of_which_nothing_is_known_has_the_usual_memory() -> None:
    chosen = offers(load_prices(), names=["4090"], max_gpus=2)
    assert [offer.cluster.known_host_bytes for offer in chosen.offered] == [64 * GIB, 128 * GIB]


def test_a_named_network_is_no_assumption() -> None:
    chosen = offers(load_prices(), names=["h100"], max_gpus=16, network_gbit_s=400.0)
    assert _found(chosen)[-1] == (16, 8, 400.0)
    assert not chosen.offered[-1].is_network_assumed


@pytest.mark.parametrize("name", ["4090", "l4"])
def test_cards_without_a_fast_network_are_not_offered_as_several_nodes(name: str) -> None:
    chosen = offers(load_prices(), names=[name])
    assert _found(chosen) == [(number, number, None) for number in (1, 2, 4, 8)]
    assert {number for _, number, _ in chosen.not_sold} == {16, 24, 32, 48, 64}


@pytest.mark.parametrize(
    ("have", "found"),
    [
        ("8xA100-40", [(n, n, None) for n in (1, 2, 4, 8)]),
        ("6xV100-32", [(n, n, None) for n in (1, 2, 4, 6)]),
        ("4x4090", [(n, n, None) for n in (1, 2, 4)]),
        ("2x4x4090", [*((n, n, None) for n in (1, 2, 4)), (8, 4, 100.0), (8, 4, 3200.0)]),
        ("16 x H100", [*((n, n, None) for n in (1, 2, 4, 8)), (16, 8, 100.0), (16, 8, 3200.0)]),
    ],
)
def test_what_the_user_has_costs_nothing_and_nothing_is_rented(
    have: str, found: list[tuple[int, int, float | None]]
) -> None:
    chosen = offers(load_prices(), have=have, host_bytes=600 * GIB)
    assert _found(chosen) == found
    assert {(offer.usd_per_gpu_hour, offer.host_bytes) for offer in chosen.offered} == {(0.0, 600 * GIB)}


def test_own_gpus_cost_what_the_user_says_and_compete_with_named_cards() -> None:
    prices = load_prices(["a100-40=0.3"])
    chosen = offers(prices, have="2xa100-40", names=["h100,l4"], max_gpus=2, host_bytes=100 * GIB)
    seen = [(offer.gpu.name, offer.num_gpus, offer.usd_per_gpu_hour, offer.host_bytes) for offer in chosen.offered]
    rented = [(name, n, prices[name].usd_per_gpu_hour, None) for name in ("H100-SXM", "L4") for n in (1, 2)]
    assert seen == [("A100-40GB-SXM", n, 0.3, 100 * GIB) for n in (1, 2)] + rented


def test_numbers_that_a_file_does_not_have_are_not_sold() -> None:
    chosen = offers(load_prices(file=FILES / "ours.csv"), names=["h100"], max_gpus=16)
    assert _found(chosen) == [(1, 1, None), (8, 8, None), (16, 8, 100.0), (16, 8, 3200.0)]
    assert [number for _, number, _ in chosen.not_sold] == [2, 4]
    assert "not sold with 2 GPUs in a machine: price list: alpha" in chosen.not_sold[0][2]
    assert [offer.host_bytes for offer in chosen.offered[:2]] == [225 * GIB, 1600 * GIB]


@given(st.integers(1, 200), st.sampled_from([None, 100.0, 3200.0]))
def test_all_cards_have_a_price_and_fill_their_nodes(most: int, network: float | None) -> None:
    prices = load_prices()
    chosen = offers(prices, max_gpus=most, network_gbit_s=network)
    assert {offer.gpu.platform for offer in chosen.offered} == {"cuda"}
    for offer in chosen.offered:
        assert offer.num_gpus <= most
        assert offer.num_gpus == offer.num_nodes * offer.gpus_per_node
        assert offer.usd_per_gpu_hour == prices[offer.gpu.name].usd_per_gpu_hour > 0
        assert (offer.network_gbit_s is None) == (offer.num_nodes == 1)
    assert len({repr(offer) for offer in chosen.offered}) == len(chosen.offered)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"names": ["h1000"]}, "--gpu: there is no GPU 'h1000'"),
        ({"names": ["a800"]}, "--gpu: there is no price of A800-80GB-SXM. Give --price 'A800-80GB-SXM=USD'"),
        ({"max_gpus": 0}, "--max-gpus: 0 is no number of GPUs"),
        ({"have": "A100-40"}, "--have: 'A100-40' names no GPUs"),
        ({"have": "0xA100-40"}, "--have: '0xA100-40' names no GPUs"),
        ({"have": "8xfoo"}, "--have: there is no GPU 'foo'"),
        ({"have": "12xh100"}, "--have: 12 GPUs do not fill machines of 8. Say how many each machine has"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        offers(load_prices(), **options)
    assert str(caught.value).startswith(line)


def test_all_of_the_gpus_that_a_user_has_are_offered() -> None:
    chosen = offers(load_prices(), have="32x8xH100", network_gbit_s=3200.0)
    assert max(offer.num_gpus for offer in chosen.offered) == 256
    chosen = offers(load_prices(), have="32x8xH100", network_gbit_s=3200.0, max_gpus=64)
    assert max(offer.num_gpus for offer in chosen.offered) == 64

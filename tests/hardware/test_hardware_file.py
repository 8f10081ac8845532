"""Cards and figures from a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.gpus import find_gpu, gpus
from zerokit.hardware.hardware_file import read_hardware

CARD: dict[str, Any] = {
    "name": "X1",
    "nominal_gb": 64,
    "capability": [9, 0],
    "bandwidth_gb_s": 3000,
    "tflops": {"bf16": 500, "fp32": 50},
}


def written(folder: Path, data: Any) -> Path:
    file = folder / "x1.json"
    file.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return file


def test_an_unknown_card_has_the_costs_of_its_kind_and_says_what_is_not_known(tmp_path: Path) -> None:
    hardware = read_hardware(written(tmp_path, {"gpu": CARD}))
    costs = CardCosts(Cluster(16, gpu=hardware.gpu), hardware.figures)
    of_h100 = CardCosts(Cluster(16, gpu=find_gpu("H100"))).matmul(8192, 8192, 8192)
    # As an H100, but for its peak; a best share of 0.8 where the H100's is 0.803.
    assert costs.matmul(8192, 8192, 8192) == pytest.approx(of_h100 * 989 / 500, rel=0.01)
    assert costs.assumptions == (
        "matrix products, attention kernels, kernels bound by memory, collectives: not measured on X1, "
        "with times as on cards that are alike",
        "the link of X1 to its host is not known: 31 GB/s",
        "what joins GPUs of X1 is not known: PCIe 4.0 x16",
        "the network between nodes is not known: 100 Gbit/s per node",
    )
    assert costs.measured == {}


def test_figures_of_a_file_stand_in_place_of_the_catalogue_s(tmp_path: Path) -> None:
    changes = {
        "launch": {"seconds": {"kernel": 8e-6}},
        "fabric": {"cards": {"X1": {"ring": 200}}},
        "best_share": {"cards": {"X1": {"tensor": 0.7}}},
    }
    hardware = read_hardware(written(tmp_path, {"gpu": CARD, "figures": changes}))
    costs = CardCosts(Cluster(8, gpu=hardware.gpu), hardware.figures)
    assert costs.launch("aten::mm") == 8e-6
    assert costs.collective("all_gather", 2**30, 8) == pytest.approx(7 / 8 * 2**30 / 200e9, rel=0.02)
    assert costs.measured.keys() == {"matmul", "collective"}
    assert figures()["launch"]["seconds"]["kernel"] == 1.63e-5


def test_a_card_of_a_file_is_not_measured_because_of_its_name(tmp_path: Path) -> None:
    hardware = read_hardware(written(tmp_path, {"gpu": CARD | {"name": "A100-mine"}}))
    assert CardCosts(Cluster(1, gpu=hardware.gpu), hardware.figures).measured == {}


def test_a_card_of_the_catalogue_goes_by_its_name(tmp_path: Path) -> None:
    assert read_hardware(written(tmp_path, {"gpu": "h100"})).gpu is find_gpu("H100")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], ": has no card. Begin with "),
        ({"gpu": CARD, "figure": {}}, ":15 (figure): there is no key 'figure'. Did you mean 'figures'?"),
        (
            {"gpu": CARD | {"memory_mib": 1_000_000}},
            ":14 (gpu.memory_mib): 1e+06 MiB are not the memory of a card of 64 GB. Give what torch reports",
        ),
        ({"gpu": "voodoo"}, "--gpu: there is no GPU 'voodoo'"),
        ({"gpu": CARD | {"bandwith": 1}}, ":14 (gpu.bandwith): there is no such key"),
        ({"gpu": CARD | {"bandwidth_gb_s": 3.35}}, " (gpu.bandwidth_gb_s): 3.35 is not plausible for any card. Give"),
        ({"gpu": CARD | {"tflops": {"bf16": 989e12}}}, " (gpu.tflops.bf16): 9.89e+14 is not plausible for any card"),
        ({"gpu": CARD, "figures": {"lunch": {}}}, " (figures.lunch): there is no figure 'lunch'"),
        ({"gpu": CARD, "figures": {"launch": 3}}, " (figures.launch): is not a section of figures"),
        (
            {"gpu": CARD, "figures": {"launch": {"seconds": {"kernel": "8us"}}}},
            " (figures.launch.seconds.kernel): '8us' is no figure. Give a number above 0, such as 1.63e-05",
        ),
        (
            {"gpu": CARD, "figures": {"fabric": {"cards": {"X2": {"ring": 1}}}}},
            " (figures.fabric.cards.X2): there is no figure 'X2'",
        ),
        (
            {"gpu": CARD, "figures": {"fabric": {"cards": {"X1": {"ring": True}}}}},
            " (figures.fabric.cards.X1.ring): True is no figure",
        ),
        ({"gpu": CARD, "figures": {"nccl": {"tree_correction": 1}}}, " (figures.nccl.tree_correction): does not have"),
        ({"gpu": CARD | {"bandwidth_gb_s": "-5"}}, "gpu.bandwidth_gb_s): Input should be a valid number"),
        ({"gpu": CARD | {"tflops": {"bf16": "nan"}}}, "gpu.tflops.bf16): Input should be a valid number"),
        ({"gpu": CARD | {"node": {"gpus": 8, "network_gbit_s": 0}}}, "_gbit_s): 0 is not plausible"),
        ({"gpu": CARD | {"node": {"gpus": 8, "network_gbit": 9}}}, "network_gbit): there is no such key"),
        ({"gpu": CARD | {"capability": [9, -1]}}, "(gpu.capability): -1 is not plausible for any card"),
        ({"gpu": CARD | {"nominal_gb": 10**400}}, ":4:17: the number 10000000000"),
        (
            {"gpu": CARD, "figures": {"launch": {"seconds": {"kernel": 8}}}},
            "(figures.launch.seconds.kernel): 8 is far from what is known: 1.63e-05. Give it in the unit",
        ),
        (
            {"gpu": CARD, "figures": {"fabric": {"cards": {"X1": {"ring": 2e11}}}}},
            "X1.ring): 2e+11 is far from what is known: 196",
        ),
        (
            {"gpu": CARD, "figures": {"beside_collective": {"value": 0.5, "low": 0.4}}},
            " (figures.beside_collective): these do not rise: 1, 0.4, 0.5, 1.4. A lowest factor is",
        ),
        ({"gpu": CARD, "kernels": {"matmul": {"int4": {}}}}, " (kernels.matmul.int4): Input should be 'bf16'"),
        ({"gpu": CARD, "figures": {"launch": {"low": 3}}}, "(figures.launch): these do not rise: 3, 1, 1.8"),
        (
            {"gpu": CARD, "figures": {"spread": {"copy": {"borrowed": [1.2, 1.5]}}}},
            " (figures.spread.copy.borrowed): these do not rise: 1.2, 1, 1.5",
        ),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        read_hardware(written(tmp_path, data))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu: H100\n1: 2", " ([1]): there is no key '1'"),
        ("gpu: H100\nfigures: {1: 2}", " (figures[1]): there is no figure '1'"),
        ("gpu: H100\nfigures: {fabric: {cards: {H100-SXM: {2020-01-01: 2}}}}", "no figure '2020-01-01'"),
        ("gpu: {name: X1, 1: 2}", ": there is no such key"),
        ("gpu: {name: X1, link: {name: a, gb_s: 1, 2020-01-01: 2}}", ": there is no such key"),
        ("gpu: {name: X1, memory_mib: .nan}", " (gpu.memory_mib): nan is not plausible for any card"),
        ("gpu: {name: X1, tflops: {bf16: .inf}}", " (gpu.tflops.bf16): 1e+300 is not plausible for any card"),
        ("gpu: H100\nfigures: {launch: {low: .nan}}", " (figures.launch.low): nan is no figure"),
    ],
)
def test_what_yaml_alone_can_write_is_one_line_too(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x1.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ZerokitError) as caught:
        read_hardware(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_figures_of_all_cards_can_be_given_in_a_file(tmp_path: Path) -> None:
    """Whatever the catalogue holds lies within the bounds, and every number has some."""
    for gpu in gpus():
        data = json.loads(json.dumps(asdict(gpu)))
        data = {key: value for key, value in data.items() if value is not None}
        for part in ("node", "link", "host_link"):
            if part in data:
                data[part] = {key: value for key, value in data[part].items() if value is not None}
        assert read_hardware(written(tmp_path, {"gpu": data, "figures": figures()})).gpu == gpu

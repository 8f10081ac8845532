"""Cards and figures from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.hardware.hardware_file import read_hardware
from zerokit.hardware.prices.figures import figures
from zerokit.hardware.prices.prices import Prices

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


def test_an_unknown_card_has_the_prices_of_its_kind_and_says_what_is_not_known(tmp_path: Path) -> None:
    hardware = read_hardware(written(tmp_path, {"gpu": CARD}))
    prices = Prices(Cluster(16, gpu=hardware.gpu), hardware.figures)
    of_h100 = Prices(Cluster(16, gpu=find_gpu("H100"))).matmul(8192, 8192, 8192)
    # As an H100, but for its peak; a best share of 0.8 where the H100's is 0.803.
    assert prices.matmul(8192, 8192, 8192) == pytest.approx(of_h100 * 989 / 500, rel=0.01)
    assert prices.assumptions == (
        "matrix products were not measured on X1: their times are as on cards that are alike",
        "attention kernels were not measured on X1: their times are as on cards that are alike",
        "the link of X1 to its host is not known: 31 GB/s",
        "what joins GPUs of X1 is not known: PCIe 4.0 x16",
        "the network between nodes is not known: 100 Gbit/s per node",
    )
    assert prices.measured == {}


def test_figures_of_a_file_stand_in_place_of_the_catalogue_s(tmp_path: Path) -> None:
    changes = {
        "launch": {"seconds": {"kernel": 8e-6}},
        "fabric": {"cards": {"X1": {"ring": 200}}},
        "best_share": {"cards": {"X1": {"tensor": 0.7}}},
    }
    hardware = read_hardware(written(tmp_path, {"gpu": CARD, "figures": changes}))
    prices = Prices(Cluster(8, gpu=hardware.gpu), hardware.figures)
    assert prices.launch("aten::mm") == 8e-6
    assert prices.collective("all_gather", 2**30, 8) == pytest.approx(7 / 8 * 2**30 / 200e9, rel=0.02)
    assert prices.measured.keys() == {"matmul", "collective"}
    assert figures()["launch"]["seconds"]["kernel"] == 11e-6


def test_a_card_of_the_catalogue_goes_by_its_name(tmp_path: Path) -> None:
    assert read_hardware(written(tmp_path, {"gpu": "h100"})).gpu is find_gpu("H100")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], ": no card is told. Begin with "),
        ({"gpu": CARD, "figure": {}}, ":15 (figure): there is no key 'figure'. Did you mean 'figures'?"),
        ({"gpu": "voodoo"}, "--gpu: there is no GPU 'voodoo'"),
        ({"gpu": CARD | {"bandwith": 1}}, ":14 (gpu.bandwith): there is no such key"),
        (
            {"gpu": CARD | {"bandwidth_gb_s": 3.35}},
            " (gpu.bandwidth_gb_s): 3.35 is out of all cards' reach. Give",
        ),
        (
            {"gpu": CARD | {"tflops": {"bf16": 989e12}}},
            " (gpu.tflops.bf16): 9.89e+14 is out of all cards' reach",
        ),
        ({"gpu": CARD, "figures": {"lunch": {}}}, " (figures.lunch): there is no figure 'lunch'"),
        ({"gpu": CARD, "figures": {"launch": 3}}, " (figures.launch): figures stand in objects"),
        (
            {"gpu": CARD, "figures": {"launch": {"seconds": {"kernel": "8us"}}}},
            " (figures.launch.seconds.kernel): '8us' is no figure. Give a number above 0, such as 1.1e-05",
        ),
        (
            {"gpu": CARD, "figures": {"fabric": {"cards": {"X2": {"ring": 1}}}}},
            " (figures.fabric.cards.X2): there is no figure 'X2'",
        ),
        (
            {"gpu": CARD, "figures": {"fabric": {"cards": {"X1": {"ring": True}}}}},
            " (figures.fabric.cards.X1.ring): True is no figure",
        ),
        (
            {"gpu": CARD, "figures": {"nccl": {"tree_correction": 1}}},
            " (figures.nccl.tree_correction): this is not",
        ),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        read_hardware(written(tmp_path, data))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

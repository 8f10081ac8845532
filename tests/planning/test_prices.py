"""Prices of cards: of zerokit, of the user, of files, and of ``zerokit prices update``.

The rows in `prices/verda` are of skypilot-org/skypilot-catalog, catalogs/v8/verda/vms.csv (000c1d0, 2026);
`prices/lambdalabs.csv` is made up in the columns of gpuhunt 0.1.34 (its `_internal/storage.py`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zerokit.errors import ZerokitError
from zerokit.planning.prices import _card_of, load_prices
from zerokit.units import GIB

FILES = Path(__file__).with_name("prices")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "memory", "instance", "card"),
    [
        ("H100", "80.0", "gpu_8x_h100_sxm5", "H100-SXM"),
        ("H100", "80.0", "gpu_1x_h100_pcie", "H100-PCIe"),
        ("A100", "80.0", "Standard_NC24ads_A100_v4", "A100-80GB-PCIe"),
        ("A100", "40.0", "p4d.24xlarge", "A100-40GB-SXM"),
        ("A100", "", "p4d.24xlarge", "A100-40GB-SXM"),
        ("A100-80GB", "[{'Name': 'A100 PCIe', 'MemoryInfo': {'SizeInMiB': 80}}]", "1x", "A100-80GB-PCIe"),
        ("H100-80G-PCIe-NVLink", "{'SizeInMiB': 81920}", "n3-H100x8", "H100-PCIe"),
        ("H100-MEGA", "", "a3-megagpu-8g", "H100-SXM"),
        ("H100NVL", "94.0", "", None),
        ("H100", "94.0", "", None),
        ("B200", "180.0", "", "B200"),
        ("GB200", "186.0", "", "GB200"),
        ("GB300", "270.0", "", None),
        ("A10G", "24.0", "g5.xlarge", "A10G"),
        ("V100", "32.0", "p3dn.24xlarge", "V100-32GB"),
        ("RTX6000-Ada", "", "", "RTX 6000 Ada"),
        ("RTX6000", "24", "", None),
        ("A6000", "48.0", "", "RTX A6000"),
        ("RTX4090", "24.0", "", "RTX 4090"),
        ("RTX4090", "48.0", "modded", None),
        ("L40", "48.0", "", None),
    ],
)
def test_names_of_catalogues_are_cards(name: str, memory: str, instance: str, card: str | None) -> None:
    found = _card_of(name, memory, instance)
    assert (found and found.name) == card


@pytest.mark.parametrize(
    ("file", "spot", "card", "usd", "counts", "host_gib"),
    [
        ("lambdalabs.csv", False, "H100-SXM", 2.99, {8}, {8: 1800}),
        ("lambdalabs.csv", False, "H100-PCIe", 2.49, {1}, {1: 200}),
        ("verda/vms.csv", False, "A100-80GB-SXM", 1.29, {1, 4}, {1: 120, 4: 480}),
        ("verda/vms.csv", False, "B200", 4.89, {1}, {1: 184}),
        ("verda/vms.csv", True, "B200", 1.7115, {1, 2}, {1: 184, 2: 368}),
        ("ours.csv", False, "H100-SXM", 2.95, {1, 8}, {1: 225, 8: 1600}),
        ("ours.csv", True, "H100-SXM", 1.25, {8}, {8: 1800}),
    ],
)
def test_a_file_gives_one_price_per_card(
    file: str, spot: bool, card: str, usd: float, counts: set[int], host_gib: dict[int, int]
) -> None:
    price = load_prices(file=FILES / file, spot=spot)[card]
    assert price.usd_per_gpu_hour == pytest.approx(usd)
    assert price.counts == counts
    assert price.host_bytes == {number: gib * GIB for number, gib in host_gib.items()}
    assert price.low <= price.usd_per_gpu_hour <= price.high


def test_what_the_user_gives_wins_and_a_file_leaves_no_other_card() -> None:
    known = load_prices(["h100=2.49", "A100-80=$1"], FILES / "ours.csv")
    assert known["H100-SXM"].usd_per_gpu_hour == 2.49
    assert known["H100-SXM"].source == "--price"
    assert known.keys() == {"H100-SXM", "A100-80GB-SXM", "RTX 4090"}
    assert known["RTX 4090"].date == "2026-05-22"


def test_zerokit_brings_dated_prices_with_a_source() -> None:
    known = load_prices()
    for name, price in known.items():
        assert price.date.startswith("202"), name
        assert price.source, name
        assert price.low <= price.usd_per_gpu_hour <= price.high, name
    # Faster cards of a kind cost more.
    order = [known[name].usd_per_gpu_hour for name in ("V100-16GB", "A100-80GB-SXM", "H100-SXM", "B200")]
    assert order == sorted(order)
    assert "geometric mean" in known["A10G"].source


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("h100", "--price: 'h100' has no price. Write the US dollars"),
        ("h100=", "--price: 'h100=' has no price"),
        ("h100=nan", "--price: 'h100=nan' has no price"),
        ("h100=-1", "--price: 'h100=-1' has no price"),
        ("h100=2,5", "--price: 'h100=2,5' has no price"),
        ("h1000=2", "--price: there is no GPU 'h1000'"),
        ("=2", "--price: there is no GPU ''"),
        ("a100=2", "may be several GPUs"),
    ],
)
def test_a_price_that_is_none_is_one_line(given: str, line: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        load_prices([given])
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ":1: is no price file"),
        ("a,b\n1,2\n", ":1: is no price file"),
        ("gpu,num_gpus\nh100,1\n", ":1: is no price file"),
        ("gpu,num_gpus,usd_per_hour\nh100,1,2\nh100,8,cheap\n", ":3: 'cheap' in column 'usd_per_hour'"),
        ("gpu,num_gpus,usd_per_hour\nh100,many,2\n", ":2: 'many' in column 'num_gpus'"),
        ("gpu,num_gpus,usd_per_hour\nh100,1,1e9\n", ":2: '1e9' in column 'usd_per_hour'"),
        ('gpu,num_gpus,usd_per_hour\n"h100,1,2\n', ": the table cannot be read"),
        ("gpu,num_gpus,usd_per_hour\nh100,0,2\n", ":2: 'num_gpus' is missing or 0"),
        ("gpu,num_gpus,usd_per_hour\nh100,8,16\nh100,4\n", ":3: has no price. Give 'usd_per_hour'"),
        ("gpu,num_gpus,usd_per_hour\nx9,1,2\n", ": has no price on demand of a known GPU"),
        ("gpu,num_gpus,usd_per_hour,spot\nh100,1,2,true\n", ": has no price on demand of a known GPU"),
        # Google Cloud's GPUs without their machines, which SkyPilot prices apart.
        ("InstanceType,AcceleratorName,AcceleratorCount,Price\n,A100,8,9.0\n", ": has no price on demand"),
        (b"\xff\xfe\x00gpu", "not UTF-8"),
    ],
)
def test_a_bad_price_file_is_one_line(text: str | bytes, line: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ZerokitError) as caught:
        load_prices(file=file)
    assert str(caught.value).startswith(str(file))
    assert line in str(caught.value)


def test_nothing_is_fetched() -> None:
    script = f"""
import socket
def refuse(*_, **__): raise AssertionError("a socket")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from pathlib import Path
from zerokit.planning.offers import offers
from zerokit.planning.prices import load_prices
assert offers(load_prices()).offered and offers(load_prices(file=Path({str(FILES / "ours.csv")!r}))).offered
import sys
assert not {{"torch", "transformers", "gpuhunt", "requests"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""``zerokit prices``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import refused
from zerokit.planning.prices import load_prices
from zerokit.units import GIB

Run = Callable[..., tuple[int, str, str]]
FAKE_GPUHUNT = '''
"""What gpuhunt 0.1.34 documents: Catalog(auto_reload), load(), query(), CatalogItem, GPUHuntError."""
import socket
from dataclasses import dataclass


class GPUHuntError(Exception):
    pass


@dataclass
class CatalogItem:
    provider: str
    instance_name: str
    location: str
    price: float
    cpu: int
    memory: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool
    disk_size: float | None


class Catalog:
    def __init__(self, balance_resources=True, auto_reload=True):
        assert not auto_reload

    def load(self, version=None):
        assert socket.getdefaulttimeout()
        if FAILS:
            raise GPUHuntError("Failed to load catalogs of all providers") from OSError("no route")
        self.items = [
            CatalogItem("aws", "p5.48xlarge", "us-east-1", 55.04, 192, 2048.0, 8, "H100", 80.0, False, None),
            CatalogItem("aws", "p5.48xlarge", "eu-west-1", 60.0, 192, 2048.0, 8, "H100", 80.0, False, None),
            CatalogItem("aws", "p5.48xlarge", "us-east-1", 20.0, 192, 2048.0, 8, "H100", 80.0, True, None),
            CatalogItem("azure", "Standard_NC24ads_A100_v4", "x", 3.67, 24, 220.0, 1, "A100", 80.0, False, 1),
            CatalogItem("gcp", "n2-standard-2", "x", 0.1, 2, 8.0, 0, None, None, False, None),
            CatalogItem("gcp", "ct5p", "x", 4.2, 208, 448.0, 4, "v5p", 0.0, False, None),
        ]

    def query(self, **filters):
        return self.items
'''


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    sys.modules.pop("gpuhunt", None)  # the fake


def _fake(folder: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
    (folder / "gpuhunt-0.1.34.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: gpuhunt\nVersion: 0.1.34\n"
    (folder / "gpuhunt-0.1.34.dist-info/METADATA").write_text(metadata, encoding="utf-8")
    (folder / "gpuhunt.py").write_text(f"FAILS = {fails}\n{FAKE_GPUHUNT}", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)


def test_an_update_is_kept_and_used(zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, monkeypatch)
    code, out, err = zerokit("prices", "update")
    cache = tmp_path / "cache/zerokit/prices.csv"
    assert (code, err) == (0, "")
    assert out.startswith(f"Wrote {cache}: 3 prices of 2 cards from aws, azure")
    code, out, _ = zerokit("prices", "show", "h100", "--format", "json")
    (sxm,) = (price for price in json.loads(out)["prices"] if price["gpu"] == "H100-SXM")
    assert (code, sxm["usd_per_gpu_hour"]) == (0, 6.88)
    assert sxm["source"] == "gpuhunt 0.1.34: aws"
    assert load_prices(spot=True)["H100-SXM"].usd_per_gpu_hour == 2.5
    assert load_prices()["A100-80GB-PCIe"].host_bytes == {1: 220 * GIB}
    assert "the median" in load_prices()["H200"].source  # the update has none


def test_an_update_that_fails_is_one_line(zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = refused(zerokit, "prices", "update")
    assert "zerokit prices update: needs the packages of zerokit[prices] (gpuhunt not installed)" in line
    _fake(tmp_path, monkeypatch, fails=True)
    line = refused(zerokit, "prices", "update")
    assert "the prices of gpuhunt cannot be fetched: no route. Check the network" in line
    assert not (tmp_path / "cache").exists()


def test_show_prints_what_a_plan_would_use(zerokit: Run) -> None:
    code, out, err = zerokit("prices", "show", "h100-sxm")
    assert (code, err) == (0, "")
    words = "H100-SXM 2.95 1.29 to 10.00 2026-05 aimultiple.com/gpu-index, 2026-05-20:"
    assert out.splitlines()[1].split()[:8] == words.split()
    assert "no price of t4 is known" in refused(zerokit, "prices", "show", "t4")
    assert "--spot: no spot prices are known" in refused(zerokit, "prices", "show", "--spot")

"""The cards that can be rehearsed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rehearsal.feature_runs import job_of
from zerokit.errors import ZerokitError
from zerokit.rehearsal.devices import CARDS, VirtualDevice, card
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.processes import Output, Worker

NOMINAL_GB = {
    **{"A100-40": 40, "A100-80": 80, "H100": 80, "H200": 141, "B200": 180, "RTX 4090": 24, "RTX 3090": 24},
    **{"L40S": 48, "A10G": 24, "T4": 16, "V100-16": 16, "V100-32": 32},
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100", "H100"),
        ("rtx4090", "RTX 4090"),
        ("A100-80GB", "A100-80"),
        ("Tesla T4", "T4"),
        ("a10g", "A10G"),
    ],
)
def test_cards_go_by_several_names(name: str, found: str) -> None:
    assert card(name) is CARDS[found]


def test_a_card_that_is_not_known() -> None:
    with pytest.raises(ZerokitError, match="'H1000' is not a card in the table") as caught:
        card("H1000")
    assert caught.value.hint is not None
    assert "H100, H200" in caught.value.hint


def test_memory_is_what_is_printed_on_the_card_or_less() -> None:
    assert set(CARDS) == set(NOMINAL_GB)
    for name, device in CARDS.items():
        # GB are GiB on most boxes; the driver keeps some.
        assert 0.89 < device.total_bytes / (NOMINAL_GB[name] * 2**30) < 1.0, name


def test_the_default_is_an_h100() -> None:
    assert card("H100") == VirtualDevice()


def test_a_job_keeps_its_device() -> None:
    job = job_of("says_its_gpu.py", (), Path("report.json")).model_copy(update={"device": card("L40S")})
    assert RehearsalJob.model_validate_json(job.model_dump_json()).device == CARDS["L40S"]


@pytest.mark.parametrize("name", ["T4", "B200"])
def test_torch_reports_the_card(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    device = CARDS[name]
    job = job_of("says_its_gpu.py", (), tmp_path / "report.json")
    job = job.model_copy(update={"device": device, "gpu_memory_bytes": device.total_bytes, "num_gpus": 1})
    with Worker(job, Output.SHOWN) as worker:
        worker.result(None)
    said = json.loads(capfd.readouterr().out)
    assert said == {
        "name": device.name,
        "capability": list(device.capability),
        "total": device.total_bytes,
        "free": device.total_bytes,
        "multiprocessors": device.multiprocessors,
        "l2": device.l2_cache_bytes,
        "shared": {"T4": 65536, "B200": 232448}[name],
        "bf16": name == "B200",
    }

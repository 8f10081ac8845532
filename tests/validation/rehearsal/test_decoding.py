"""The cost of a launch is that of published times of tokens."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from tests.validation.rehearsal import decoding
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu

ROWS: list[dict[str, Any]] = json.loads(decoding.WRITTEN.read_text(encoding="utf-8"))


def test_a_launch_costs_what_hosts_of_published_tokens_took() -> None:
    costs = CardCosts(Cluster(1, gpu=find_gpu("A100-80GB-SXM")))
    launches = [row["launch_microseconds"] for row in ROWS]
    assert 1e6 * costs.launch("aten::mm") == pytest.approx(statistics.median(launches), rel=0.05)
    slowest = max(ROWS, key=lambda row: float(row["launch_microseconds"]))
    usual = slowest["rest_milliseconds"] + 1e3 * slowest["kernels"] * costs.launch("aten::mm")
    assert slowest["milliseconds"] / usual == pytest.approx(costs.launch_spread.high, rel=0.05)


def test_the_record_is_of_the_published_tokens() -> None:
    told = [(row["source"], row["card"], row["milliseconds"]) for row in ROWS]
    assert told == [(one.source, one.card, round(one.milliseconds, 2)) for one in decoding.TOKENS]
    for row in ROWS:
        seconds = row["kernels"] * row["launch_microseconds"] / 1e3 + row["rest_milliseconds"]
        assert seconds == pytest.approx(row["milliseconds"], rel=0.01)

"""T5's positions: one tensor for all layers of a stack, which attention copies, or takes as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.validation.memory.against_random import RECORD, holds, row_of
from tests.validation.memory.rehearsed import Point
from zerokit.memory import estimate
from zerokit.memory.gpu import sizes_of_run
from zerokit.memory.layout import layout_of
from zerokit.memory.model_blocks import model_calls_of
from zerokit.memory.settings import settings_of

ROWS: list[dict[str, Any]] = [
    row
    for draw in json.loads(RECORD.read_text(encoding="utf-8"))["draws"].values()
    for row in draw["rows"]
    if row["model_type"] in ("t5", "mt5")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["point"]["name"])
def test_the_estimate_is_near_what_was_rehearsed(row: dict[str, Any]) -> None:
    point = Point(**row["point"])
    told = estimate(replace(point.training_run(), rank=0))
    assert abs(told.device.peak_bytes / row["rehearsed"]["peak_bytes"] - 1) < 0.04
    assert holds(row_of(point, told, row["rehearsed"]))


def test_the_table_of_positions_is_in_the_first_layer_of_its_stack() -> None:
    run = Point(**ROWS[0]["point"]).training_run()
    sizes = sizes_of_run(run, settings_of(run))
    assert sizes is not None
    assert not isinstance(run.model, int)
    layers = [block for block in model_calls_of(run.model, layout_of(run), sizes).blocks if block.is_layer]
    config = run.model.config
    assert len(layers) == config["num_layers"] + config["num_decoder_layers"]
    tables = [any("relative_attention_bias" in call.module for call in layer.calls) for layer in layers]
    assert [number for number, has in enumerate(tables) if has] == [0, config["num_layers"]]

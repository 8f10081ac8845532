from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.documents import Document, dotted
from zerokit.findings import Remove
from zerokit.lint import check_document
from zerokit.lint.examples import recipe
from zerokit.lint.selection import Selection

HPZ = "zero_optimization.zero_hpz_partition_size"
QGZ = "zero_optimization.zero_quantized_gradients"


@pytest.mark.parametrize(
    ("size", "num_gpus", "divides", "node"),
    [
        (3, 16, "error", False),
        (32, 16, "warning", False),
        (8, 16, None, False),
        (16, 32, None, True),
        (16, 16, None, True),
        (8, 8, None, True),
        (4, 8, None, True),
        (1, 7, None, False),
        (0, 7, None, False),
    ],
)
def test_groups_of_the_second_copy(size: int, num_gpus: int, divides: str | None, node: bool) -> None:
    config = zero(3, zero_hpz_partition_size=size)
    assert said("hpz-divides", config, num_gpus=num_gpus) == ([(HPZ, divides)] if divides else [])
    assert said("hpz-node", config, num_gpus=num_gpus) == [(HPZ, "warning")] * node
    below = zero(2, zero_hpz_partition_size=size)
    assert said("hpz-divides", below, num_gpus=num_gpus) == said("hpz-node", below, num_gpus=num_gpus) == []


def test_only_what_is_sure_is_removed() -> None:
    (of_all,) = found("hpz-node", zero(3, zero_hpz_partition_size=8), num_gpus=8)
    assert of_all.fix == (Remove(of_all.path),)
    (of_some,) = found("hpz-node", zero(3, zero_hpz_partition_size=4), num_gpus=8)
    assert of_some.fix == ()
    assert found("hpz-node", zero(3, zero_hpz_partition_size=4), num_gpus=8, gpus_per_node=4) == []


@pytest.mark.parametrize(
    ("num_gpus", "gpus_per_node", "count"), [(8, 8, 1), (1, 8, 1), (16, 8, 0), (20, 8, 1), (8, 4, 0)]
)
def test_quantised_gradients_cross_nodes(num_gpus: int, gpus_per_node: int, count: int) -> None:
    run = {"num_gpus": num_gpus, "gpus_per_node": gpus_per_node}
    config = zero(3, zero_quantized_gradients=True)
    assert said("quantized-gradients-node", config, **run) == [(QGZ, "warning")] * count
    assert said("quantized-gradients-node", zero(3), **run) == []


@pytest.mark.parametrize(
    ("keys", "more", "path"),
    [
        ({"reduce_scatter": False}, {}, "zero_optimization.reduce_scatter"),
        ({"reduce_scatter": False}, {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}}, QGZ),
        ({"reduce_scatter": True}, {}, None),
        ({}, {}, None),
    ],
)
def test_quantised_gradients_need_reduce_scatter(
    keys: dict[str, Any], more: dict[str, Any], path: str | None
) -> None:
    config = {**zero(3, zero_quantized_gradients=True, **keys), **more}
    # Alone: with Muon another rule has the same fix, and one of the two is enough.
    alone = Selection(only=["quantized-gradients-scatter"]).of
    findings = check_document(Document(config, "ds.json"), select=alone).findings
    assert [(dotted(one.path), one.severity) for one in findings] == (
        [] if path is None else [(path, "error")]
    )
    below = {**zero(2, zero_quantized_gradients=True, **keys), **more}
    assert said("quantized-gradients-scatter", below) == []


def test_frozen_weights_are_there_under_adapters() -> None:
    config = zero(3, zero_quantized_nontrainable_weights=True)
    assert found("quantized-frozen-weights", config, recipe=recipe())
    assert found("quantized-frozen-weights", config, recipe=recipe(peft={"type": "lora"})) == []

from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.documents import Document, dotted
from zerokit.findings import Remove
from zerokit.lint import check_document
from zerokit.lint.selection import Selection

QGZ = "zero_optimization.zero_quantized_gradients"


def test_only_what_is_sure_is_removed() -> None:
    (of_all,) = found("hpz-node", zero(3, zero_hpz_partition_size=8), num_gpus=8)
    assert of_all.fix == (Remove(of_all.path),)
    (of_some,) = found("hpz-node", zero(3, zero_hpz_partition_size=4), num_gpus=8)
    assert of_some.fix == ()
    assert found("hpz-node", zero(3, zero_hpz_partition_size=4), num_gpus=8, gpus_per_node=4) == []


@pytest.mark.parametrize(
    ("keys", "more", "path"),
    [
        ({"reduce_scatter": False}, {}, "zero_optimization.reduce_scatter"),
        ({"reduce_scatter": False}, {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}}, QGZ),
        ({"reduce_scatter": True}, {}, None),
        ({}, {}, None),
    ],
)
def test_quantised_gradients_need_reduce_scatter(keys: dict[str, Any], more: dict[str, Any], path: str | None) -> None:
    config = {**zero(3, zero_quantized_gradients=True, **keys), **more}
    # Alone: with Muon another rule has the same fix, and one of the two is enough.
    alone = Selection(only=["quantized-gradients-scatter"]).of
    findings = check_document(Document(config, "ds.json"), select=alone).findings
    assert [(dotted(one.path), one.severity) for one in findings] == ([] if path is None else [(path, "error")])
    below = {**zero(2, zero_quantized_gradients=True, **keys), **more}
    assert said("quantized-gradients-scatter", below) == []

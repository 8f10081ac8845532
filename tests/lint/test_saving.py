from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.findings import SetValue

GATHER = "stage3_gather_16bit_weights_on_model_save"
PATH = f"zero_optimization.{GATHER}"


@pytest.mark.parametrize(
    ("target", "severity"), [("trainer", "warning"), ("accelerate", "warning"), ("deepspeed", "info"), (None, "info")]
)
def test_a_model_in_pieces_is_not_saved_whole(target: Any, severity: str) -> None:
    assert said("unsaved-weights", zero(3), target=target) == [("zero_optimization", severity)]
    (finding,) = found("unsaved-weights", zero(3, **{GATHER: False}), target=target)
    assert ".".join(map(str, finding.path)) == PATH
    assert finding.fix == ()  # what a person wrote stays
    old = "stage3_gather_fp16_weights_on_model_save"
    (finding,) = found("unsaved-weights", zero(3, **{old: False}), target=target)
    assert (finding.path[-1], finding.fix) == (old, ())
    assert finding.message.startswith(f"'{old}' is false")
    assert finding.hint == f"Write '{GATHER}' in its place, with true"  # both together are refused
    (absent,) = found("unsaved-weights", zero(3), target=target)
    added = (SetValue(("zero_optimization", GATHER), True),)
    assert absent.fix == (added if target in ("trainer", "accelerate") else ())
    for config in (
        zero(2),
        zero(3, **{GATHER: True}),
        zero(3, **{GATHER: "auto"}),
        zero(3, gather_16bit_weights_on_model_save=True),
        zero(3, stage3_gather_fp16_weights_on_model_save=True),
        zero(3, stage3_gather_16bit_weights_on_save=True),
    ):
        assert said("unsaved-weights", config, target=target) == []

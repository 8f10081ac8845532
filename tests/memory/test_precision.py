from __future__ import annotations

import pytest

from zerokit.errors import ZerokitError
from zerokit.memory.precision import state_bytes


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_mixed_precision_is_sixteen_bytes_per_parameter(precision: str, zero_stage: int) -> None:
    states = state_bytes(precision, zero_stage)
    assert (states.parameter, states.gradient, states.optimizer) == (2, 2, 12)


def test_fp32_gets_a_second_copy_of_the_parameters_under_zero_only() -> None:
    states = [state_bytes("fp32", stage) for stage in range(4)]
    assert [(s.parameter, s.gradient, s.optimizer) for s in states] == [(4, 4, 8)] + 3 * [(4, 4, 12)]


def test_unknown_precision_suggests_the_nearest() -> None:
    with pytest.raises(ZerokitError, match="bf16"):
        state_bytes("bf161", 2)

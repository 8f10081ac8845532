from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from zerokit.errors import ZerokitError
from zerokit.memory.decoder import DecoderShape
from zerokit.memory.ledger import training_ledger
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


def _sources() -> set[str]:
    shape = DecoderShape(64, 128, 2, 4, 4, 100)
    return {
        term.source
        for stage in range(4)
        for term in training_ledger(
            shape, zero_stage=stage, world_size=2, micro_batch_size=1, seq_len=8
        ).terms
        if term.source.startswith("deepspeed/")
    }


@pytest.mark.parametrize("source", sorted(_sources()))
def test_cited_functions_exist_in_the_installed_deepspeed(source: str) -> None:
    spec = importlib.util.find_spec("deepspeed")
    assert spec is not None
    assert spec.origin is not None
    path, _, named = source.partition(" ")
    text = (Path(spec.origin).parent.parent / path).read_text()
    for part in named.split(" (")[0].replace(".", " ").split():
        assert any(f"{kind} {part}" in text for kind in ("def", "class")), part

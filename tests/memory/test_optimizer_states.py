"""States of bitsandbytes' optimizers: in bytes with constants, and in unified memory."""

from __future__ import annotations

import pytest

from tests.memory.runs import run
from zerokit.choices import OptimizerKind
from zerokit.memory import Estimate, Lora, estimate

MOMENTS, CONSTANTS = "optimizer moments", "constants of states in 8 bits"
SMALL, PAGED = "states of small tensors, in fp32", "paged states of the optimizer"


def held(answer: Estimate, device: str = "gpu") -> dict[str, int]:
    """Bytes of what is always held of the optimizer's states, without master weights."""
    terms = answer.terms_of(device, "always")  # type: ignore[arg-type]
    return {term.name: term.bytes for term in terms if term.name in (MOMENTS, CONSTANTS, SMALL, PAGED)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_in_8_bits_are_bytes_and_a_constant_for_256(stage: int) -> None:
    answer = estimate(run(stage, optimizer="adamw_8bit"))
    elements = answer.num_parameters // (1 if stage == 0 else 4)
    assert held(answer)[MOMENTS] == pytest.approx(2 * elements, rel=1e-3)
    assert held(answer)[CONSTANTS] == pytest.approx(2 * 4 * elements / 256, rel=1e-3)
    assert not held(answer, "pageable")


def test_states_of_small_tensors_are_in_fp32_where_no_flat_buffer_joins_them() -> None:
    answer = estimate(run(0, optimizer="adamw_8bit"))
    norms = (2 * 4 + 1) * 512  # of hidden size each: less than 4,096
    assert held(answer)[SMALL] == 2 * 4 * norms
    assert SMALL not in held(estimate(run(2, optimizer="adamw_8bit")))


@pytest.mark.parametrize(
    ("kind", "state_bytes", "states"),
    [("paged_adamw_8bit", 1, 2), ("paged_adamw_32bit", 4, 2), ("paged_lion_8bit", 1, 1)],
)
def test_paged_states_are_in_unified_memory(kind: OptimizerKind, state_bytes: int, states: int) -> None:
    answer = estimate(run(2, optimizer=kind))
    elements = answer.num_parameters // 4
    assert held(answer, "pageable") == {PAGED: pytest.approx(states * state_bytes * elements, rel=1e-3)}
    constants = states * 4 * elements / 256 if state_bytes == 1 else 0
    assert sum(held(answer).values()) == pytest.approx(constants, rel=1e-3)
    assert any("paged" in warning for warning in answer.warnings)
    assert answer.model_states.optimizer_states.unit == 4  # master weights


def test_what_is_too_small_for_pages_stays_on_the_gpu() -> None:
    answer = estimate(run(2, lora=Lora(1, ("q_proj",)), optimizer="paged_adamw_32bit"))
    assert answer.num_trainable_parameters // 4 < 100_000
    assert not held(answer, "pageable")
    assert held(answer)[MOMENTS] == pytest.approx(8 * answer.num_trainable_parameters / 4, rel=1e-2)

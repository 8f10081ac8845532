from __future__ import annotations

import math
from typing import Any

import pytest

from zerokit.errors import ZerokitError
from zerokit.memory.model_states import model_states

# ZeRO paper (arXiv 1910.02054), Table 1: GB (1e9 bytes) per GPU under P_os, P_os+g and P_os+g+p. The
# column of 7.5 billion is rounded; in the other two the paper cuts off what follows the printed digits
# (513.5 is printed 513, 257.75 is 257, 4187.5 is 4187, 2054.7 is 2054).
TABLE_1 = {
    ("7.5", 1): ("120", "120", "120"),
    ("7.5", 4): ("52.5", "41.3", "30"),
    ("7.5", 16): ("35.6", "21.6", "7.5"),
    ("7.5", 64): ("31.4", "16.6", "1.88"),
    ("7.5", 256): ("30.4", "15.4", "0.47"),
    ("7.5", 1024): ("30.1", "15.1", "0.12"),
    ("128", 1): ("2048", "2048", "2048"),
    ("128", 4): ("896", "704", "512"),
    ("128", 16): ("608", "368", "128"),
    ("128", 64): ("536", "284", "32"),
    ("128", 256): ("518", "263", "8"),
    ("128", 1024): ("513", "257", "2"),
    ("1000", 1): ("16000", "16000", "16000"),
    ("1000", 4): ("7000", "5500", "4000"),
    ("1000", 16): ("4750", "2875", "1000"),
    ("1000", 64): ("4187", "2218", "250"),
    ("1000", 256): ("4046", "2054", "62.5"),
    ("1000", 1024): ("4011", "2013", "15.6"),
}


@pytest.mark.parametrize(("billions", "num_gpus"), TABLE_1)
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_table_1_of_the_zero_paper(billions: str, num_gpus: int, zero_stage: int) -> None:
    printed = TABLE_1[billions, num_gpus][zero_stage - 1]
    states = model_states(int(float(billions) * 10**9), zero_stage=zero_stage, num_gpus=num_gpus)

    digits = len(printed.partition(".")[2])
    scaled = states.total_bytes / 1e9 * 10**digits
    as_printed = math.floor(scaled + 0.5 + 1e-9) if billions == "7.5" else math.floor(scaled + 1e-9)
    assert f"{as_printed / 10**digits:.{digits}f}" == printed


def test_each_stage_partitions_one_more_state() -> None:
    by_stage = [model_states(100, zero_stage=stage, num_gpus=4) for stage in range(4)]

    assert [(s.parameters_bytes, s.gradients_bytes, s.optimizer_states_bytes) for s in by_stage] == [
        (200, 200, 1200),
        (200, 200, 300),
        (200, 50, 300),
        (50, 50, 300),
    ]
    assert by_stage[0].total_bytes == 16 * 100


def test_partitions_round_up() -> None:
    states = model_states(101, zero_stage=3, num_gpus=4)
    assert (states.parameters_bytes, states.optimizer_states_bytes) == (2 * 26, 12 * 26)


def test_integers_stay_exact_where_floats_would_not() -> None:
    assert model_states(10**18 + 1, zero_stage=0, num_gpus=1).total_bytes == 16 * 10**18 + 16


def test_frozen_parameters_have_no_gradients_and_no_optimizer_states() -> None:
    states = model_states(1000, zero_stage=1, num_gpus=2, num_trainable_parameters=10)
    assert (states.parameters_bytes, states.gradients_bytes, states.optimizer_states_bytes) == (2000, 20, 60)


def test_other_precisions_and_optimizers() -> None:
    states = model_states(
        10, zero_stage=0, num_gpus=1, bytes_per_parameter=4, bytes_per_gradient=4, optimizer_bytes_per_parameter=0
    )
    assert (states.parameters_bytes, states.gradients_bytes, states.optimizer_states_bytes) == (40, 40, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"zero_stage": 4},
        {"zero_stage": -1},
        {"num_gpus": 0},
        {"num_parameters": 0},
        {"bytes_per_parameter": 0},
        {"bytes_per_gradient": -2},
        {"optimizer_bytes_per_parameter": -1},
        {"num_trainable_parameters": 0},
        {"num_trainable_parameters": 101},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_impossible_sizes_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ZerokitError, match=next(iter(wrong))):
        model_states(**({"num_parameters": 100, "zero_stage": 1, "num_gpus": 2} | wrong))


# ZeRO paper, Table 2: the largest model that fits on GPUs of 32 GB, in billions, with 64 data-parallel ranks
# and a model-parallel degree. The paper multiplies what it prints for a degree of 1.
TABLE_2 = {
    1: ("2", "7.6", "14.4", "128"),
    2: ("4", "15.2", "28.8", "256"),
    4: ("8", "30.4", "57.6", "512"),
    8: ("16", "60.8", "115.2", "1024"),
    16: ("32", "121.6", "230.4", "2048"),
}


def _largest(zero_stage: int) -> float:
    """Billions of parameters whose states take 32e9 bytes, cut to one digit as printed."""
    low, high = 1, 10**12
    while low < high:
        middle = (low + high + 1) // 2
        fits = model_states(middle, zero_stage=zero_stage, num_gpus=64).total_bytes <= 32 * 10**9
        low, high = (middle, high) if fits else (low, middle - 1)
    return math.floor(low / 1e8 + 1e-6) / 10


@pytest.mark.parametrize("degree", TABLE_2)
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_table_2_of_the_zero_paper_in_theory(degree: int, zero_stage: int) -> None:
    assert _largest(zero_stage) * degree == pytest.approx(float(TABLE_2[degree][zero_stage]))

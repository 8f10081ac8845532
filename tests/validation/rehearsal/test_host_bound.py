"""What compares predicted and measured steps that Python decides."""

from __future__ import annotations

import pytest

from tests.validation.rehearsal.host_bound import (
    KERNELS,
    LEAST_KERNEL,
    bare_plans,
    kernel_seconds,
    machine_of,
    plans,
    printed,
    scaled,
)


def row(seconds: list[float], *units: float) -> dict[str, object]:
    return {"seconds": seconds, "machine": [{"python_call": unit, "view": 4 * unit} for unit in units]}


def test_there_are_forty_plans_of_all_stages() -> None:
    assert len(set(plans())) == 40
    assert {plan.stage for plan in plans()} == {0, 1, 2, 3}
    assert {(plan.checkpointing, plan.accumulation) for plan in plans()} >= {(True, 4), (False, 1), (True, 1)}
    assert {plan.stage for plan in bare_plans()} == {None}


def test_steps_count_as_on_a_machine_of_the_median_unit() -> None:
    rows = [row([1.0, 1.0, 1.0], 2e-7, 2e-7), row([3.0, 3.0, 90.0], 6e-7, 6e-7), row([2.0] * 3, 3e-7, 3e-7)]
    machine = machine_of(rows)
    assert machine == pytest.approx({"python_call": 3e-7, "view": 12e-7})
    assert [scaled(one, machine["python_call"]) for one in rows] == pytest.approx([1.5, 1.5, 2.0])


def test_lines_of_the_script_are_found_among_others() -> None:
    text = '10.0 s: the rehearsal is in step 2\nplan {"place": 0, "seconds": [0.5]}\nthe plan {is} good\n'
    assert list(printed(text)) == [{"place": 0, "seconds": [0.5]}]


def test_an_operator_costs_what_predicts_a_step_without_deepspeed_right() -> None:
    low, high, theirs = (1e-3 + 200 * kernel for kernel in (*KERNELS, 4e-6))
    assert kernel_seconds(low, high, theirs) == pytest.approx(4e-6)
    assert kernel_seconds(low, high, low / 2) == LEAST_KERNEL

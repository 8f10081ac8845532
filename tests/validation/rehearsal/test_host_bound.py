"""What compares predicted and measured steps that Python decides."""

from __future__ import annotations

import pytest

from tests.validation.rehearsal.host_bound import (
    fastest,
    machine_of,
    plans,
    printed,
    seconds_of_python,
    seconds_of_step,
)


def test_there_are_forty_plans_of_all_stages() -> None:
    assert len(set(plans())) == 40
    assert {plan.stage for plan in plans()} == {0, 1, 2, 3}
    assert {(plan.checkpointing, plan.accumulation) for plan in plans()} >= {(True, 4), (False, 1), (True, 1)}


def test_a_slowed_machine_and_slowed_steps_do_not_count() -> None:
    units = [2e-7, 2e-7, 3e-7, 9e-7, 2e-7, 5e-7]
    rows = [{"machine": [{"python_call": unit, "node_run": 4 * unit}]} for unit in units]
    assert machine_of(rows) == pytest.approx({"python_call": 2e-7, "node_run": 8e-7})
    assert seconds_of_step({"seconds": [7.0, 1.0, 1.0, 1.0, 90.0]}) == pytest.approx(1.0)


def test_the_fastest_of_all_rounds_counts() -> None:
    first = fastest([{"seconds": [3.0]}, {"seconds": [2.0]}])
    again = fastest([first, {"seconds": [4.0]}, {"seconds": [2.5]}])
    assert again == {"seconds": [2.0], "rounds": [3.0, 2.0, 4.0, 2.5]}


def test_operators_are_subtracted_as_profiled_after_the_first_step() -> None:
    row = {"seconds": [2.0] * 5, "operators": [0.9, 0.2, 0.3, 0.25]}
    assert seconds_of_python(row) == pytest.approx(1.5)


def test_lines_of_the_script_are_found_among_others() -> None:
    text = '10.0 s: the rehearsal is in step 2\nplan {"place": 0, "seconds": [0.5]}\nthe plan {is} good\n'
    assert list(printed(text)) == [{"place": 0, "seconds": [0.5]}]

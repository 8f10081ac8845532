"""The measured costs of Python functions, and how they are fitted."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest

from tools.host_costs.fit import Fitted, fit, groups, undisturbed, with_nodes
from zerokit.hardware.costs import python_calls
from zerokit.hardware.costs.python_calls import FunctionCost, function_cost, function_name, functions, kind_of
from zerokit.tables import table_of


def test_functions_are_named_by_their_file_in_a_library_and_their_qualified_name() -> None:
    assert function_name(logging.Logger.isEnabledFor.__code__) == ("logging/__init__.py", "Logger.isEnabledFor")
    assert function_name(np.quantile.__wrapped__.__code__)[0].startswith("numpy/lib/")
    assert function_name(groups.__code__)[0] == groups.__code__.co_filename


def test_a_function_that_was_not_measured_costs_as_those_of_its_kind() -> None:
    known = function_cost(logging.Logger.isEnabledFor.__code__)
    assert known == FunctionCost(*functions()["logging/__init__.py"]["Logger.isEnabledFor"])

    class Module:
        def forward(self) -> None:
            pass

    kinds = table_of(python_calls.__file__)["kinds"]
    assert function_cost(groups.__code__) == FunctionCost(*kinds["others"])
    assert function_cost(Module.forward.__code__) == FunctionCost(*kinds["forward"])
    assert kind_of("deepspeed/runtime/zero/newer.py", "Newer.forward") == "deepspeed"


def test_the_table_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal asks for the costs of thousands of functions."""
    known = [function_cost(code) for code in (groups.__code__, logging.Logger.isEnabledFor.__code__)]
    monkeypatch.delattr(python_calls, "table_of")
    assert [function_cost(code) for code in (groups.__code__, logging.Logger.isEnabledFor.__code__)] == known


@pytest.mark.parametrize("package", ["deepspeed", "torch", "transformers", "accelerate"])
def test_the_table_names_files_of_the_installed_packages(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parents[1]
    named = [path for path in functions() if path.startswith(f"{package}/")]
    assert len(named) >= 3
    assert [path for path in named if not (installed / path).is_file()] == []


def samples(frames: list[int], operators: list[int], units: list[float], nodes: int = 0) -> dict[str, np.ndarray]:
    counts = {"frames": np.array(frames), "operators": np.array(operators), "nodes": np.full(len(frames), nodes)}
    return {**counts, "units": np.array(units)}


def test_a_loop_costs_by_its_callees() -> None:
    frames = [10] * 20 + [40] * 20 + [10] * 20
    operators = [0] * 40 + [30] * 20
    units = [3 + 2 * frame + 0.5 * operator for frame, operator in zip(frames, operators, strict=True)]
    assert fit(groups(samples(frames, operators, units))) == pytest.approx((3, 2, 0.5, 0))


def test_what_is_not_in_most_repetitions_is_no_part_of_a_step() -> None:
    usual = samples([1, 2, 1], [0, 0, 3], [1.0, 50.0, 2.0])
    disturbed = samples([1, 2, 1], [0, 0, 3], [900.0, 52.0, 2.0])
    longer = samples([1, 2, 1, 1], [0, 0, 3, 0], [1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="only 1 of 2"):
        undisturbed([longer, usual])
    found = undisturbed([longer, usual, disturbed, usual])
    assert list(found["units"]) == [1, 50, 2]
    assert list(found["frames"]) == [1, 2, 1]


def test_what_never_varies_is_part_of_the_call() -> None:
    assert fit(groups(samples([4] * 9, [2] * 9, [7.0] * 9))) == pytest.approx((7, 0, 0, 0))


def test_nodes_of_the_backward_pass_cost_beyond_what_a_loop_of_them_takes() -> None:
    engine = Fitted(call=40, frame=0, operator=0, node=9)
    node = Fitted(call=6, frame=3, operator=1)
    assert with_nodes(engine, node, hot=5) == Fitted(call=40, frame=3, operator=11)
    assert with_nodes(engine, node, hot=50).operator == 0

"""The measured costs of Python functions, and how they are fitted."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest

from tools.host_costs.fit import DISTANCES, SIZES, Caches, fit, fit_all, groups, undisturbed
from zerokit.hardware.costs import python_calls
from zerokit.hardware.costs.python_calls import (
    FunctionCost,
    cold_node,
    coldness,
    function_cost,
    function_name,
    functions,
    kind_of,
    sizes,
)
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


@pytest.mark.torch
@pytest.mark.parametrize("package", ["deepspeed", "torch", "transformers", "accelerate"])
def test_the_table_names_files_of_the_installed_packages(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parents[1]
    named = [path for path in functions() if path.startswith(f"{package}/")]
    assert len(named) >= 3
    assert [path for path in named if not (installed / path).is_file()] == []


WARM = Caches(np.ones(DISTANCES), np.ones(SIZES))
ONE_PASS = np.array([2])


def samples(
    frames: list[int], operators: list[int], units: list[float], distance: int | list[int] = 8, step: int = 0
) -> dict[str, np.ndarray]:
    counts = {"frames": frames, "operators": operators, "units": units}
    same = {key: np.broadcast_to(value, len(frames)) for key, value in (("distance", distance), ("step", step))}
    return same | {key: np.array(values) for key, values in counts.items()}


def test_a_loop_costs_by_its_callees() -> None:
    frames = [10] * 20 + [40] * 20 + [10] * 20
    operators = [0] * 40 + [30] * 20
    units = [3 + 2 * frame + 0.5 * operator for frame, operator in zip(frames, operators, strict=True)]
    assert fit(groups(samples(frames, operators, units)), WARM, ONE_PASS) == pytest.approx((3, 2, 0.5))


def test_functions_share_factors_of_the_caches() -> None:
    distances = [0, 1, 2, 8, 15, 40, 300, 5000] * 4
    factors = [0.5, 0.6, 0.7, 1, 1, 1.4, 2, 3] * 4
    frames = [1, 2, 3, 4] * 8
    passes = np.array([1, 2, 5])
    parts = {}
    for name, call, frame in (("a", 10, 1), ("b", 4, 0.5), ("c", 30, 0)):
        units = [call * factor + frame * one for factor, one in zip(factors, frames, strict=True)]
        steps = [
            samples(frames, [0] * 32, [size * one for one in units], distances, step)
            for step, size in enumerate((0.8, 1, 1.3))
        ]
        parts[name] = [one for step in steps for one in groups(step)]
    caches, costs = fit_all(parts, passes)
    # Of 0, 1, 2 to 3, ..., 8 to 15, ..., 32 to 63, ..., 256 to 511, ..., and 1024 and more.
    assert caches.coldness[[0, 1, 2, 4, 6, 9, 11]] == pytest.approx([0.5, 0.6, 0.7, 1, 1.4, 2, 3], rel=0.02)
    # What no step has is as the next smaller one.
    assert caches.sizes[[0, 1, 2, 4, 5, 7]] == pytest.approx([0.8, 0.8, 1, 1, 1.3, 1.3], rel=0.02)
    assert costs["a"] == pytest.approx((10, 1, 0), rel=0.02)
    assert costs["b"] == pytest.approx((4, 0.5, 0), rel=0.02)


def test_the_units_of_all_calls_together_are_right() -> None:
    """Fits by relative error are a little low."""
    found = groups(samples([1, 1, 5, 5], [0] * 4, [1.0, 9.0, 20.0, 40.0]))
    cost = fit(found, WARM, ONE_PASS)
    assert sum(one.number * (cost.call + one.frames * cost.frame) for one in found) == pytest.approx(70)


def test_what_is_not_in_most_repetitions_is_no_part_of_a_step() -> None:
    def ns(frames: list[int], *times: float) -> dict[str, np.ndarray]:
        return {"frames": np.array(frames), "ns": np.array(times)}

    usual, disturbed = ns([1, 2, 1], 1, 50, 2), ns([1, 2, 1], 900, 52, 2)
    longer = ns([1, 2, 1, 1], 1, 1, 1, 1)
    with pytest.raises(ValueError, match="only 1 of 2"):
        undisturbed([longer, usual])
    found = undisturbed([longer, usual, disturbed, usual])
    assert list(found["ns"]) == pytest.approx([1, 50, 2])
    assert list(found["frames"]) == [1, 2, 1]


def test_what_never_varies_is_part_of_the_call() -> None:
    assert fit(groups(samples([4] * 9, [2] * 9, [7.0] * 9)), WARM, ONE_PASS) == pytest.approx((7, 0, 0))


def test_a_call_is_never_cheaper_after_more_other_functions() -> None:
    for factors in (coldness(), sizes()):
        assert factors == sorted(factors)
        assert min(factors) > 0.2
        assert 1 in factors
    assert cold_node() >= 0

"""torch.compile in a rehearsal."""

from __future__ import annotations

from tests.rehearsal.speed_questions import answer


def test_compiled_models_and_functions_run_as_written() -> None:
    found = answer("compiled")
    assert found["shapes"] == [[4, 8], [4, 8], [4, 8]]
    assert found["value"] == 2


def test_the_report_names_what_ran_as_written_and_nothing_else() -> None:
    warnings = answer("compiled")["warnings"]
    assert len(warnings) == 3
    assert all("speed_questions.py" in warning for warning in warnings)
    for name in ("doubled", "Linear", "ReLU"):
        assert any(name in warning for warning in warnings)


def test_what_is_another_algorithm_when_it_is_not_compiled_is_refused() -> None:
    assert "flex_attention" in answer("compiled")["refused"]

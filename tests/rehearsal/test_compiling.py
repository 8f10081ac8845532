"""torch.compile in a rehearsal."""

from __future__ import annotations

from tests.rehearsal.speed_questions import answer

MATRIX = 1024 * 1024 * 4


def test_inductor_keeps_no_values_between_what_it_fuses() -> None:
    found = answer("compiled")
    # As written, the inputs of sine and cosine wait for backward beside the result.
    assert found["written"][:2] == [3 * MATRIX, 3 * MATRIX]
    assert found["compiled"] == [MATRIX, MATRIX, 3 * MATRIX]
    assert found["shape"] == [1024, 256]


def test_compiled_flex_attention_makes_no_matrix_of_scores() -> None:
    scores = 2 * 1024 * 1024 * 4
    assert max(answer("compiled")["attention"]) < scores


def test_what_a_compiled_function_asks_of_the_card_is_a_constant() -> None:
    assert answer("compiled")["properties"] == [4]


def test_torch_script_compiles_what_stands_beneath_a_replacement() -> None:
    assert answer("compiled")["scripted"] == [4]  # of a loss, by which the phase is told


def test_what_is_generated_is_counted_where_it_is_called() -> None:
    assert not [site for site in answer("compiled")["sites"] if "Runner" in site]


def test_a_graph_that_is_not_compiled_runs_as_it_is_written_and_the_report_says_so() -> None:
    found = answer("compiled")
    assert found["not compiled"] == found["written"]
    graphs, left_out, backward = found["warnings"]
    assert "CUDA graphs" in graphs
    assert "RuntimeError: no such lowering" in left_out
    assert "RuntimeError: no such kernel" in backward
    assert all("speed_questions.py" in warning for warning in found["warnings"])


def test_a_backward_pass_is_measured_nowhere_and_runs_as_written_if_it_is_not_compiled() -> None:
    found = answer("compiled")
    assert set(found["measuring"]) == {False}
    assert found["backward as written"][:2] == found["compiled"][:2]
    assert found["backward as written"][2] >= found["compiled"][2]


def test_what_is_another_algorithm_when_it_is_not_compiled_is_refused() -> None:
    assert "cannot stand in for torch.compile of flex_attention" in answer("compiled")["refused"]

"""Native kernels in the place of Meta kernels that are written in Python."""

from __future__ import annotations

from tests.rehearsal.speed_questions import answer


def test_results_have_the_layout_of_torchs_own_meta_kernels() -> None:
    compared = answer("meta_kernels")
    assert compared["differences"] == []
    assert compared["tensors"] > 500


def test_small_tensors_are_still_computed() -> None:
    same = ("layer_norm", "rms_norm", "relu", "half", "host_ids")
    assert answer("small_values") == dict.fromkeys(same, True)


def test_small_results_of_large_inputs_are_made_up_as_everywhere() -> None:
    assert answer("made_up_statistics") == [[1.0] * 8, [1.0] * 8]


def test_the_recording_names_the_operators() -> None:
    expected = {
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "aten::native_dropout",
        "aten::native_dropout_backward",
        "aten::relu",
    }
    assert expected <= set(answer("operators_on_record"))

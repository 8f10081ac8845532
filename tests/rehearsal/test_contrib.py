"""Stand-ins for packages that few scripts need: what they allocate."""

from __future__ import annotations

from tests.rehearsal.attention_questions import answer


def test_norms_and_losses_of_flash_attentions_csrc_allocate_what_the_compiled_ones_do() -> None:
    found = answer("flash_attention_csrc")
    rows, numbers = 1000, 1000 * 256
    assert found["plain"] == [True, False, False, True, True]  # no sum, no mask
    assert found["of plain"] == numbers * 2 + 2 * rows * 4
    assert found["of summed"] == 2 * numbers * 2 + numbers + 2 * rows * 4
    assert found["of gradients"] == 2 * numbers * 2 + 2 * 256 * 4
    assert found["losses"] == [[100], "torch.float32", "torch.float32"]
    assert found["in place"] == [True, False]
    assert found["rotary"] == 0
    differing, shaped, placed = found["refused"]
    assert "torch.bfloat16" in differing
    assert "shapes" in shaped
    assert placed == "x2 must be on CUDA"


def test_grouped_products_keep_rows_weights_and_the_order_alone() -> None:
    found = answer("grouped_products")
    rows = 96 * 2
    assert found["order"] == rows * 64 * 2 + rows * 4 + 5 * rows * 4  # and one workspace
    assert found["product"] == rows * 128 * 2
    assert found["sum"] == 96 * 128 * 2
    assert found["flops"] == 2 * rows * 64 * 128
    assert found["all flops"] == 3 * found["flops"]
    assert found["gradients"] == [[96, 64], [4, 64, 128], [96, 2]]
    assert found["left"] == 2 * (96 * 64 + 4 * 64 * 128) + 4 * rows
    assert found["transposed"] == [rows, 128]
    assert found["version"] == "1.1.4.post8"
    assert all("batch_sizes must be" in line for line in found["refused"])
    assert len(found["refused"]) == 2


def test_norms_of_apex_keep_what_apex_keeps() -> None:
    found = answer("apex_norms")
    rows, numbers, parts = 1000, 1000 * 256, 16 * 256 * 4
    out, figure = numbers * 2, rows * 4
    assert found["layer"][0] == out + 2 * figure
    assert found["rms"][0] == out + figure
    assert found["plain"][0] == out + figure
    assert found["efficient"][0] == figure  # the output is kept, the input let go of
    assert found["mixed"][0] == 2 * out + figure
    assert [found[name][2] for name in ("layer", "mixed")] == ["torch.bfloat16", "torch.float32"]
    assert found["rms"][1] == out + 256 * 2 + parts
    assert found["layer"][1] == out + 2 * 256 * 2 + 2 * parts
    assert found["cast"] == "torch.bfloat16"
    assert found["on the host"] == [2, 8]


def test_optimizers_of_apex_have_its_states() -> None:
    found = answer("apex_optimizers")
    numbers = 10**6
    in_half_and_float, freed = 2 * numbers * 4 + numbers * 2, True
    assert found["adam"] == [2 * numbers * 4, in_half_and_float, freed]
    assert found["lamb"][0] == 2 * numbers * 2
    assert found["sgd"] == [numbers * 4, numbers * 4, False]
    assert found["sgd of another dtype"][0] == 0
    assert found["norms"] == [[1], [2]]
    assert "expected 2 lists" in found["refused"]


def test_rotary_embeddings_of_apex_keep_the_angles_alone() -> None:
    found = answer("apex_rotary")
    assert found == {"kept": 50 * 2 * 4 * 64 * 2, "is of one piece": True, "grad": [50, 2, 4, 64]}


def test_weight_gradients_of_apex_are_added_in_their_place() -> None:
    found = answer("apex_weight_gradients")
    assert found["bytes"] == 0
    assert found["flops"] == 2 * 80 * 64 * 32
    assert "not torch.float32" in found["refused"]


def test_their_kernels_take_time_on_the_clock() -> None:
    told = answer("kernels_on_the_clock")
    assert told["multi_tensor_adam"] == [
        1000 * 4 * (1 + 2 * 3)
    ]  # gradients are read, the others written, too
    assert told["apply_rotary"] == [4 * 10 * 2 * 32 * 4 + 2 * 10 * 32 * 4]
    assert told["cuApplyLayerNorm"] == [3 * 10 * 64 * 4 + 64 * 4]
    assert told["wgrad_gemm_accum"] == [32, 64, 10, "bfloat16"]

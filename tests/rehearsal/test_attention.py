"""Attention of a rehearsal: the backend that torch would choose, and what its kernels allocate."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rehearsal.attention_cases import CAPABILITIES, CHOICES, CUDNN, EFFICIENT, FLASH, SEEN
from tests.rehearsal.attention_questions import (
    autograd,
    choices,
    choices_by_cudnn,
    cudnn_memory,
    efficient_memory,
    flash_memory,
    flops,
    meta_kernels,
    refusal,
)
from tests.rehearsal.questions import answer
from zerokit.rehearsal.native.backend import cudnn_release

# ---- the choice


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_scaled_dot_product_attention_takes_the_backend_that_torch_would(capability: str) -> None:
    expected = {name: backends[CAPABILITIES.index(capability)] for name, (_, backends) in CHOICES.items()}
    assert answer(choices, capability) == expected


def test_cudnn_goes_last_where_the_user_says_so() -> None:
    chosen = answer(choices, environment=(("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1"),))
    assert chosen["bfloat16"] == FLASH
    assert chosen["mask"] == EFFICIENT


def test_cudnn_goes_first_only_from_the_release_that_torch_trusts() -> None:
    assert answer(choices_by_cudnn) == {"0": FLASH, "91002": FLASH, "91500": FLASH, "91501": CUDNN, "92000": CUDNN}


def test_inputs_that_no_enabled_backend_takes_are_refused() -> None:
    assert answer(refusal).startswith("No available kernel")


# ---- results


def test_results_have_the_shapes_strides_and_dtypes_of_torchs_own_meta_kernels() -> None:
    compared = answer(meta_kernels)
    assert compared["differences"] == []
    assert compared["tensors"] > 300


def test_gradients_through_scaled_dot_product_attention_have_their_inputs_shapes() -> None:
    assert answer(autograd) == []


def test_flops_are_those_of_torchs_own_counter_but_for_what_a_causal_mask_hides() -> None:
    counted = answer(flops)
    seen_of_300 = 301 / 600
    seen_of_100_and_200 = (100 * 101 + 200 * 201) / 2 / (100**2 + 200**2)
    seen = [*[1, seen_of_300] * 3, seen_of_100_and_200, 1, 1, 1]
    expected = [torchs * share for torchs, share in zip(counted["torch"], seen, strict=True)]
    assert counted["rehearsal"] == pytest.approx(expected, rel=1e-12)


def test_pairs_that_a_window_or_a_mask_hides_are_not_counted() -> None:
    def seen(queries: int, keys: int, causal: bool, left: int, right: int, *, first: int) -> int:
        """Where the first query's own key is the one at `first`."""
        to_the_right = np.arange(keys) - np.arange(queries)[:, None] - first
        visible = np.ones((queries, keys), dtype=bool)
        if left >= 0:
            visible &= to_the_right >= -left
        if causal or right >= 0:
            visible &= to_the_right <= (0 if causal else right)
        return int(visible.sum())

    counted = answer(flops)
    assert counted["flash"] == [seen(*case, first=case[1] - case[0]) for case in SEEN]
    assert counted["efficient"] == [
        seen(queries, keys, True, left, right, first=first)
        for queries, keys, _, left, right in SEEN
        for first in (0, keys - queries)
    ]
    assert counted["packed"] == [(100 * 101 + 200 * 201) / 2]


# ---- working memory, in bytes that the kernels request


def test_flash_backward_takes_accumulators_for_padded_rows_and_expanded_heads() -> None:
    measured = answer(flash_memory)
    assert measured["gradients"] == 2 * 1000 * (8 + 2 + 2) * 72 * 2
    padded_rows = 2 * 1024 * 8
    assert measured["dense"] == padded_rows * 4 + padded_rows * 96 * 4 + 2 * (2 * 1000 * 8 * 72 * 2)
    packed_rows = (1300 + 128 * 3) * 8
    assert measured["packed"] == packed_rows * 4 + packed_rows * 96 * 4 + 2 * (1300 * 8 * 72 * 2)


def test_flash_forward_splits_the_keys_when_it_has_too_few_rows_to_fill_the_gpu() -> None:
    splits, rows = 32, 8 * 64
    assert answer(flash_memory)["split_forward"] == splits * rows * (1 + 128) * 4
    assert answer(flash_memory)["whole_forward"] == 0


def test_efficient_backward_takes_tiles_for_the_query_gradient() -> None:
    measured = answer(efficient_memory)
    row_sums = 2 * 4 * 300 * 4
    assert measured["bfloat16"] == row_sums + 2 * 4 * 5 * (4 + 64 * 64) * 4
    product, total = 2 * 4 * 300 * 64 * 4, row_sums
    assert measured["float32"] == max(product + 2 * total, total + 2 * 4 * 5 * (4 + 64 * 64) * 4)
    # Beyond 128 the key and value gradients go through memory too: 200 // (2 * 4) parts, at most 5 of 64.
    accumulators = 5 * 64 * 2 * 256
    assert measured["head 256"] == row_sums + 2 * 4 * (accumulators + 3 * 4 * (4 + 128 * 64)) * 4


@pytest.mark.parametrize(
    ("capability", "forward", "backward", "grouped", "dropout_forward", "dropout_backward"),
    [
        # What plans of cuDNN 9.20 for these GPUs answer to get_workspace_size: bfloat16, 4 x 32 heads x 2048
        # x 128, causal.
        ("9.0", 256, 135266560, 269484288, 256, 135266560),
        ("10.0", 0, 135266304, 269484160, 67108992, 202375296),
        ("8.0", 0, 269484160, 403701888, 0, 269484160),
    ],
)
def test_cudnn_takes_the_workspace_of_its_plans(
    capability: str, forward: int, backward: int, grouped: int, dropout_forward: int, dropout_backward: int
) -> None:
    assert answer(cudnn_memory, capability) == {
        "forward": forward,
        "backward": backward,
        "grouped backward": grouped,
        "dropout forward": dropout_forward,
        "dropout backward": dropout_backward,
    }


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ('nvidia-cudnn-cu12==9.5.1.17; platform_system == "Linux"', 90501),
        ('nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == "Linux"', 90100),
        ("nvidia-cudnn-cu13==9.24.0.43", 92400),
    ],
)
def test_a_cuda_build_says_itself_which_it_brings(line: str, release: int) -> None:
    assert cudnn_release("2.13.0", ["filelock", "nvidia-cublas==13.1.0.3", line]) == release


@pytest.mark.parametrize(
    ("torch", "release"),
    [
        ("2.5.1+cpu", 90100),
        ("2.6.0", 90100),
        ("2.7.1", 90501),
        ("2.10.0+cpu", 91002),
        ("2.11.0", 91900),
        ("2.13.0+cpu", 92000),
        ("2.99.0", 92400),
    ],
)
def test_another_build_is_taken_for_pypis_of_its_release(torch: str, release: int) -> None:
    assert cudnn_release(torch, ["filelock"]) == release

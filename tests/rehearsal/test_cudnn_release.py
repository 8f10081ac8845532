"""The release of cuDNN, which decides whether attention asks cuDNN first."""

from __future__ import annotations

import pytest

from zerokit.rehearsal.native.backend import cudnn_release


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

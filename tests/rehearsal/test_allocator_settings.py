from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import LaunchError
from zerokit.rehearsal.native.allocator_settings import AllocatorSettings

MIB = 2**20


def test_without_variables_the_settings_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    assert AllocatorSettings.of_environment() == AllocatorSettings()


def test_the_newer_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert AllocatorSettings.of_environment().max_split_size_bytes == 64 * MIB
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert AllocatorSettings.of_environment() == AllocatorSettings(expandable_segments=True)


def test_every_setting_that_is_followed() -> None:
    text = (
        "expandable_segments:False, max_split_size_mb:128,large_segment_size_mb:40,"
        "max_non_split_rounding_mb:50,roundup_power2_divisions:4,garbage_collection_threshold:0.6,backend:native"
    )
    assert AllocatorSettings.parse(text) == AllocatorSettings(False, 128 * MIB, 40 * MIB, 50 * MIB, 4)


def test_settings_that_are_not_followed_are_kept_to_be_named() -> None:
    text = "roundup_power2_divisions:[256:1,512:2,>:8],backend:cudaMallocAsync,expandable_segments:True"
    settings = AllocatorSettings.parse(text)
    assert settings.passed_over == ("roundup_power2_divisions:[256:1,512:2,>:8]", "backend:cudaMallocAsync")
    assert settings.expandable_segments
    assert settings.roundup_power2_divisions == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segments:true", "'true' is neither True nor False"),
        ("expandable_segments", "'expandable_segments' is not NAME:VALUE"),
        ("max_split_size_mb:big", "'big' is not a whole number"),
        ("max_split_size_mb:128;expandable_segments:True", "is not a whole number"),
        ("roundup_power2_divisions:3", "has to be a power of two"),
        ("large_segment_size_mb:10", "has to be more than 10"),
        ("max_split_size_mb:19", "has to be at least 20"),
        ("large_segment_size_mb:32,max_split_size_mb:24", "has to be at least 32"),
        ("max_non_split_rounding_mb:19", "has to be at least 20"),
    ],
)
def test_what_pytorch_refuses_is_one_line(text: str, message: str) -> None:
    with pytest.raises(LaunchError, match=f"PYTORCH_ALLOC_CONF: .*{message}"):
        AllocatorSettings.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_settings_or_one_line(text: str) -> None:
    with contextlib.suppress(LaunchError):
        AllocatorSettings.parse(text)

"""What the models find depends on the release of DeepSpeed, and on who reads the file besides."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.findings import Finding
from zerokit.lint import check_config
from zerokit.releases.versions import NEWEST, Version
from zerokit.resolving.run import Run

OLD = Version(0, 16, 9)


def about(data: dict[str, Any], path: tuple[str, ...], version: Version | None) -> list[Finding]:
    report = check_config({"train_micro_batch_size_per_gpu": 1, **data}, Run.of(deepspeed_version=version))
    return [finding for finding in report.findings if finding.path == path]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"elasticity": {"enabled": False}}, ("elasticity",)),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, ("zero_optimization", "mics_shard_size")),
        ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}, ("optimizer", "type")),
    ],
)
def test_what_the_release_takes_is_a_note(data: dict[str, Any], path: tuple[str, ...]) -> None:
    (note,) = about(data, path, OLD)
    assert note.severity == "info"
    assert note.message.endswith("DeepSpeed 0.16.9 still takes it")
    assert not note.fix
    for version in (None, NEWEST):
        (error,) = about(data, path, version)
        assert error.severity == "error"
        assert "still takes it" not in error.message


def test_what_no_release_takes_stays_an_error() -> None:
    (error,) = about({"zero_optimization": {"stages": 3}}, ("zero_optimization", "stages"), OLD)
    assert error.severity == "error"


def test_a_key_that_the_trainer_compares_is_left_to_a_person_and_says_so() -> None:
    data = {"train_micro_batch_size_per_gpu": 1, "gradient_acumulation_steps": 4, "fp16": {"enabel": True}}
    for target, told in (("trainer", True), ("deepspeed", False)):
        found = check_config(data, Run.of(target=target)).findings
        (misspelt,) = [one for one in found if one.path == ("gradient_acumulation_steps",)]
        assert (misspelt.fix == (), misspelt.unfixed is not None) == (told, told)


@pytest.mark.parametrize("target", ["trainer", "accelerate"])
def test_a_stage_in_quotes_is_an_error_where_it_empties_what_is_saved(target: str) -> None:
    data = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "3"}}
    path = ("zero_optimization", "stage")
    (error,) = [one for one in check_config(data, Run.of(target=target)).findings if one.path == path]
    assert error.severity == "error"
    assert "saves empty weights" in error.message
    (warning,) = [one for one in check_config(data, Run.of(target="deepspeed")).findings if one.path == path]
    assert warning.severity == "warning"

"""Rules of releases of DeepSpeed: where they speak, and where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.documents import Document
from zerokit.errors import ConfigError
from zerokit.lint import check_config
from zerokit.lint.defects import CHANGES
from zerokit.lint.upgrade import check_upgrade, parse_upgrade
from zerokit.releases.versions import NEWEST, SUPPORTED, Version, parse_version
from zerokit.resolving.run import Run

CPU = {"offload_optimizer": {"device": "cpu"}}
BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True}}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
MUON = {"optimizer": {"type": "Muon", "params": {"muon_lr": 0.02}}}


def schedule(kind: str, **params: Any) -> dict[str, Any]:
    return {**MICRO, "scheduler": {"type": kind, "params": params}}


MASTERS = {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}

CHANGED: dict[str, tuple[Mapping[str, Any], str, str]] = {
    "communication-bf16": ({**MICRO, "communication_data_type": "bf16"}, "communication_data_type", "error"),
    "script-scheduler-first": (schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2), "scheduler", "info"),
    "universal-zero3": ({**zero(3), "checkpoint": {"load_universal": True}}, "checkpoint.load_universal", "error"),
    "warmup-maximum": ({**schedule("WarmupLR"), **ADAMW}, "scheduler.params", "error"),
    "bf16-without-zero": ({**zero(0), **BF16}, "bf16.enabled", "info"),
    "master-weights-stages": ({**zero(3), **MASTERS}, "fp16.fp16_master_weights_and_grads", "error"),
    "muon-zero3": ({**zero(3), **MUON}, "optimizer.type", "error"),
    "buffers-keep-format": ({**zero(1), **FP16}, "", "info"),
    "muon-embeddings": ({**zero(1), **MUON}, "optimizer.type", "warning"),
    "muon-newton-schulz": ({**zero(1), **MUON}, "optimizer.type", "info"),
}
"""Change of meaning -> a config that meets it, and the path and severity of its finding."""


def test_every_change_has_an_example() -> None:
    assert set(CHANGES) == set(CHANGED)


@pytest.mark.parametrize("name", CHANGED)
def test_changes_of_meaning(name: str) -> None:
    config, path, severity = CHANGED[name]
    change = CHANGES[name]
    before = max(release for release in map(parse_version, SUPPORTED) if release < change.since)
    said_of = {
        release: [
            (".".join(map(str, finding.path)), finding.severity)
            for finding in found("changed-meaning", config, deepspeed_version=release)
            if change.before[1:] in finding.message
        ]
        for release in (before, change.since)
    }
    assert said_of == {before: [(path, severity)], change.since: []}


def test_a_warmup_to_the_old_default_is_the_same_everywhere() -> None:
    config = {**schedule("WarmupLR"), "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    findings = found("changed-meaning", config, deepspeed_version=Version(0, 17, 1))
    assert not [finding for finding in findings if "0.001" in finding.message]


def test_defaults_of_other_releases() -> None:
    rule, old = "default-of-version", {"deepspeed_version": Version(0, 18, 0)}
    config = {**zero(2, **CPU), **BF16}
    messages = [finding.message for finding in found(rule, config, **old)]
    assert len(messages) == 3
    assert messages[0].startswith("'gradient_clipping' is absent: DeepSpeed 0.18.0 takes 0.0, 0.19.8 1.0")
    assert any("offload_optimizer.pin_memory" in message for message in messages)
    assert said(rule, config, **old, target="trainer") == said(rule, {**config, "gradient_clipping": 1.0}, **old)
    assert said(rule, config, deepspeed_version=NEWEST) == said(rule, config) == []


@pytest.mark.parametrize("version", [None, *map(parse_version, ("0.14.0", "0.17.1", "0.19.8"))], ids=str)
def test_a_plain_config_is_good_everywhere(version: Version | None) -> None:
    config = {**zero(2), **BF16, **ADAMW, "gradient_clipping": 1.0}
    findings = check_config(config, Run.of(deepspeed_version=version)).findings
    assert [finding for finding in findings if finding.severity == "error"] == []


def upgraded(config: Mapping[str, Any], releases: str, **run: Any) -> list[tuple[str, str, str]]:
    """The rule, path and severity of all that an upgrade changes."""
    report = check_upgrade(Document(config, "ds.json"), Run.of(**run), parse_upgrade(releases))
    return [(found.rule, ".".join(map(str, found.path)), found.severity) for found in report.findings]


FP16_MUON = {**zero(2, reduce_scatter=False), **FP16, **MUON, "gradient_clipping": 0.0}
LAMB = {**zero(0), "gradient_clipping": 0.0, "optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-3}}}


@pytest.mark.parametrize(
    ("releases", "config", "change"),
    [
        ("0.18.2..0.18.3", {**zero(2), "gradient_accumulation_steps": 2}, "defect-fixed"),
        ("0.17.5..0.17.6", {**zero(2), "gradient_accumulation_steps": 2}, "defect-comes"),
        ("0.19.2..0.19.3", zero(2), "default-changes"),
        ("0.19.6..0.19.7", {**zero(2), "compute_grad_norm": True}, ""),
        ("0.19.6..0.19.7", zero(2, compute_grad_norm=False), "key-read"),
        ("0.19.6..0.19.7", LAMB, "key-not-read"),
        ("0.19.6..0.19.7", {**zero(0), "sparse_attention": {"mode": "dense"}}, "key-not-read"),
        ("0.18.9..0.19.0", FP16_MUON, "meaning-changes"),
        ("0.19.6..0.19.7", FP16_MUON, "defect-fixed"),
        ("0.18.5..0.18.9", {**zero(2), "gradient_clipping": 1.0}, "defect-fixed"),
        ("0.16.4..0.17.6", {**zero(1), **MUON}, "key-read"),
    ],
)
def test_what_an_upgrade_changes(releases: str, config: Mapping[str, Any], change: str) -> None:
    changes = upgraded(config, releases)
    assert (change in {rule for rule, _, _ in changes}) == bool(change)
    worse = {"defect-comes", "default-changes", "key-not-read"}
    assert all((severity == "info") == (rule not in worse) for rule, _, severity in changes)


def test_an_upgrade_changes_nothing_for_other_files() -> None:
    assert upgraded({**zero(1), "gradient_clipping": 1.0}, "0.16.0..0.17.1", num_gpus=1) == []
    # Muon came after 0.16.4, so that what later releases changed in it changes nothing here.
    changes = upgraded({**zero(1), **MUON, "gradient_clipping": 0.0}, "0.16.4..0.19.8", num_gpus=1)
    assert ("meaning-changes", "optimizer.type", "info") not in changes


@pytest.mark.parametrize(
    ("releases", "line"),
    [
        ("0.19.8..0.16.4", "0.19.8 is later than 0.16.4: this is no upgrade. Write the older one first: "),
        ("0.19..0.19.8", "both releases are 0.19.8, so nothing changes"),
        ("..0.19.8", "does not name two releases"),
        ("0.16.4..0.99", "DeepSpeed 0.99 is not supported. Give a release from"),
    ],
)
def test_releases_that_are_no_upgrade(releases: str, line: str) -> None:
    with pytest.raises(ConfigError, match="--upgrade") as error:
        parse_upgrade(releases)
    assert line in str(error.value)


def test_an_upgrade_without_a_second_release_is_to_the_newest() -> None:
    assert parse_upgrade("0.16.4") == parse_upgrade("0.16.4..") == parse_upgrade(f"0.16.4..{NEWEST}")


def test_an_upgrade_of_a_launch_file_is_that_of_the_ds_config_that_accelerate_makes() -> None:
    section = {"zero_stage": 3, "offload_optimizer_device": "cpu"}
    launch = Document({"distributed_type": "DEEPSPEED", "deepspeed_config": section}, "launch.yaml")
    found = check_upgrade(launch, Run(), parse_upgrade("0.16.4..0.19.8")).findings
    changed = {one.rule: one for one in found if "pin_memory" in one.message}["default-changes"]
    assert changed.path == ("deepspeed_config", "offload_optimizer_device")
    assert "in a ds_config named as 'deepspeed_config_file'" in (changed.hint or "")
    launch.data["distributed_type"] = "FSDP"
    assert check_upgrade(launch, Run(), parse_upgrade("0.16.4..0.19.8")).findings == ()

"""Rules of releases of DeepSpeed: where they speak, and where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.lint import check_config
from zerokit.lint.defects import IN_RULES_OF_THEIR_OWN, MEETINGS, NOT_SEEN_IN_CONFIG
from zerokit.lint.examples import llama_8b, mixture_of_experts, recipe
from zerokit.lint.rules.versions import MEETINGS_WITH_CHANGES, NO_MATTER
from zerokit.releases.bugs import KNOWN_BUGS
from zerokit.releases.changes import CHANGES
from zerokit.releases.versions import NEWEST, SUPPORTED, Version, parse_version

CPU = {"offload_optimizer": {"device": "cpu"}}
BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True}}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
MUON = {"optimizer": {"type": "Muon", "params": {"muon_lr": 0.02}}}
LORA = {
    "recipe": recipe(
        peft={"type": "lora", "modules_to_save": ["lm_head"]}, training={"gradient_checkpointing": True}
    )
}
COMPILED = {"recipe": recipe(training={"torch_compile": True})}


def schedule(kind: str, **params: Any) -> dict[str, Any]:
    return {**MICRO, "scheduler": {"type": kind, "params": params}}


MEETS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "overlap-wait": (zero(2, overlap_comm=True), {}, "zero_optimization.overlap_comm"),
    "overlap-buffer-index": (zero(1, overlap_comm=True), {}, "zero_optimization.overlap_comm"),
    "overlap-does-not-overlap": (zero(1, overlap_comm=True), {}, "zero_optimization.overlap_comm"),
    "overlap-buffer-lifetime": (zero(2, overlap_comm=True), {}, "zero_optimization.overlap_comm"),
    "overlap-producer-streams": (zero(2, overlap_comm=True), COMPILED, "zero_optimization.overlap_comm"),
    "zero3-gradient-stream": (zero(3), {}, "zero_optimization.stage"),
    "zero2-accumulation": ({**zero(2), "gradient_accumulation_steps": 2}, {}, "gradient_accumulation_steps"),
    "zero2-offload-accumulation": (
        {**zero(2, **CPU), "gradient_accumulation_steps": 3},
        {},
        "gradient_accumulation_steps",
    ),
    "zero2-accumulation-format": (
        {**zero(2), **BF16, "gradient_accumulation_steps": 2, "data_types": {"grad_accum_dtype": "fp32"}},
        {},
        "data_types.grad_accum_dtype",
    ),
    "zero1-not-divided": (
        {**zero(1), **BF16, "data_types": {"grad_accum_dtype": "fp32"}},
        {},
        "data_types.grad_accum_dtype",
    ),
    "bf16-optimizer-accumulation": (
        {**zero(1), **BF16, "data_types": {"grad_accum_dtype": "fp32"}},
        {"num_gpus": 2},
        "data_types.grad_accum_dtype",
    ),
    "stage0-fp16-no-step": ({**zero(0), **FP16, **ADAMW}, {}, "fp16.enabled"),
    "stage0-bf16-accumulates": ({**zero(0), **BF16}, {}, "bf16.enabled"),
    "stage0-bf16-checkpoint": ({**zero(0), **BF16}, {}, "bf16.enabled"),
    "stage0-frozen-memory": ({**zero(0), **BF16}, LORA, "zero_optimization.stage"),
    "zero1-fp16-overflow": ({**zero(1), **FP16}, {}, "fp16.enabled"),
    "zero12-infinite-norm": ({**zero(2), **FP16, "gradient_clipping": 1.0}, {}, "gradient_clipping"),
    "zero3-mixed-dtypes": ({**zero(3), **BF16}, LORA, "zero_optimization.stage"),
    "zero3-quantized-bf16": (
        {**zero(3, zero_quantized_weights=True), **BF16},
        {},
        "zero_optimization.zero_quantized_weights",
    ),
    "hpz-stale-copy": (zero(3, zero_hpz_partition_size=8), {}, "zero_optimization.zero_hpz_partition_size"),
    "hpz-small-parameters": (
        zero(3, zero_hpz_partition_size=8),
        {},
        "zero_optimization.zero_hpz_partition_size",
    ),
    "all-reduce-fetch-call": (
        zero(3, stage3_use_all_reduce_for_fetch_params=True),
        {"num_gpus": 2},
        "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    ),
    "all-reduce-fetch-padding": (
        zero(3, stage3_use_all_reduce_for_fetch_params=True),
        {},
        "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    ),
    "leaf-module-race": (zero(3), {"model": mixture_of_experts()}, "zero_optimization.stage"),
    "zero3-frozen-checkpointing": (zero(3), LORA, "zero_optimization.stage"),
    "zero3-wrapper-hooks": (zero(3), LORA, "zero_optimization.stage"),
    "zero3-reduce-one-by-one": (zero(3), {}, "zero_optimization.stage"),
    "slow-backward-hooks": (zero(1), {}, "zero_optimization.stage"),
    "pin-memory-ignored": (
        zero(2, offload_optimizer={"device": "cpu", "pin_memory": False}),
        {},
        "zero_optimization.offload_optimizer.pin_memory",
    ),
    "super-offload-start": (
        zero(3, offload_optimizer={"device": "cpu", "super_offload": True}),
        {},
        "zero_optimization.offload_optimizer.super_offload",
    ),
    "super-offload-groups": (
        zero(3, offload_optimizer={"device": "cpu", "super_offload": True}),
        {},
        "zero_optimization.offload_optimizer.super_offload",
    ),
    "nvme-open-files": (zero(3, offload_param={"device": "nvme"}), {}, "zero_optimization.stage"),
    "nvme-hang": (zero(3, offload_optimizer={"device": "nvme"}), {}, "zero_optimization.stage"),
    "nvme-save-race": (zero(3, offload_optimizer={"device": "nvme"}), {}, "zero_optimization.stage"),
    "zenflow-backward": (zero(2, zenflow={}, **CPU), {}, "zero_optimization.zenflow"),
    "fused-adam-large": ({**zero(2), **ADAMW}, {"model": llama_8b(), "num_gpus": 2}, "optimizer.type"),
    "muon-untested": ({**zero(1), **MUON}, {}, "optimizer.type"),
    "muon-reduce-scatter": ({**zero(1), **MUON}, {"num_gpus": 2}, "zero_optimization"),
    "muon-offload": ({**zero(1, **CPU), **MUON}, {}, "zero_optimization.offload_optimizer"),
    "warmup-first-step": (schedule("WarmupLR"), {}, "scheduler.type"),
    "warmup-groups": (schedule("WarmupLR"), {}, "scheduler.type"),
    "cosine-no-decay": (
        schedule("WarmupCosineLR", total_num_steps=10, warmup_num_steps=10),
        {},
        "scheduler.params.total_num_steps",
    ),
    "one-cycle-stairs": (
        schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2, cycle_first_stair_count=5),
        {},
        "scheduler.params",
    ),
    "one-cycle-lists": (
        schedule("OneCycle", cycle_min_lr=[0.1], cycle_max_lr=[0.2]),
        {},
        "scheduler.params",
    ),
    "universal-zero3-nodes": (
        {**zero(3), "checkpoint": {"load_universal": True}},
        {},
        "checkpoint.load_universal",
    ),
}
"""Defect -> a config that meets it, what is known of the run, and where it is named."""

MISSES: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("overlap-wait", zero(3, overlap_comm=True), {}),
    ("overlap-wait", zero(2), {}),
    ("overlap-buffer-index", zero(2, overlap_comm=True, contiguous_gradients=False), {}),
    ("overlap-producer-streams", zero(2, overlap_comm=True), {}),
    ("zero2-accumulation", {**zero(2), "gradient_accumulation_steps": "auto"}, {}),
    ("zero2-accumulation", {**zero(2, **CPU), "gradient_accumulation_steps": 8}, {}),
    ("zero2-accumulation", {**zero(1), "gradient_accumulation_steps": 8}, {}),
    ("zero2-offload-accumulation", {**zero(2, **CPU), "gradient_accumulation_steps": 2}, {}),
    (
        "bf16-optimizer-accumulation",
        {**zero(1), **BF16, "data_types": {"grad_accum_dtype": "fp32"}},
        {"num_gpus": 1},
    ),
    (
        "stage0-fp16-no-step",
        {**zero(0), **FP16, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}},
        {},
    ),
    ("stage0-bf16-accumulates", {**zero(1), **BF16}, {}),
    ("zero1-fp16-overflow", {**zero(1), **FP16}, {"num_gpus": 1}),
    ("zero3-mixed-dtypes", {**zero(3), **BF16}, {}),
    ("fused-adam-large", {**zero(2), **ADAMW}, {"model": llama_8b(), "num_gpus": 8}),
    ("muon-untested", {**zero(1), **MUON, "zero_allow_untested_optimizer": True}, {}),
    ("muon-reduce-scatter", {**zero(1, reduce_scatter=False), **MUON}, {"num_gpus": 2}),
    ("warmup-groups", schedule("WarmupLR", warmup_max_lr=0.1), {}),
    ("one-cycle-stairs", schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2), {}),
]

BUGS = {bug.id: bug for bug in KNOWN_BUGS}


def version_with(defect: str) -> Version:
    bug = BUGS[defect]
    return next(version for version in map(parse_version, reversed(SUPPORTED)) if bug.affects(version))


def test_every_defect_is_looked_for_or_said_not_to_be() -> None:
    others = IN_RULES_OF_THEIR_OWN | NOT_SEEN_IN_CONFIG
    assert set(MEETINGS) == set(MEETS) == set(BUGS) - others
    assert others <= set(BUGS)
    assert {name for name in MEETINGS if BUGS[name].affects(NEWEST)} == set()


@pytest.mark.parametrize("defect", MEETS)
def test_a_config_that_meets_a_defect(defect: str) -> None:
    config, run, path = MEETS[defect]
    bug, version = BUGS[defect], version_with(defect)
    met = [
        finding
        for finding in found("known-defect", config, deepspeed_version=version, **run)
        if finding.message.startswith(bug.summary)
    ]
    assert [".".join(map(str, finding.path)) for finding in met] == [path]
    assert str(version) in met[0].message
    assert met[0].severity in ("error", "warning")
    if bug.fixed_in is not None:
        assert str(bug.fixed_in) in str(met[0].hint)
        after = found("known-defect", config, deepspeed_version=bug.fixed_in, **run)
        assert not [finding for finding in after if finding.message.startswith(bug.summary)]


@pytest.mark.parametrize(("defect", "config", "run"), MISSES)
def test_a_config_that_does_not(defect: str, config: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    findings = found("known-defect", config, deepspeed_version=version_with(defect), **run)
    assert not [finding for finding in findings if finding.message.startswith(BUGS[defect].summary)]


def test_what_may_happen_is_no_error() -> None:
    def severities(defect: str, **run: Any) -> set[str]:
        config = MEETS[defect][0]
        findings = found("known-defect", config, deepspeed_version=version_with(defect), **run)
        summary = BUGS[defect].summary
        return {finding.severity for finding in findings if finding.message.startswith(summary)}

    assert severities("zero2-accumulation") == {"error"}
    assert severities("overlap-buffer-index") == {"error"}
    assert severities("overlap-buffer-lifetime") == {"warning"}
    assert severities("slow-backward-hooks") == {"warning"}
    assert severities("muon-reduce-scatter") == {"warning"}
    assert severities("muon-reduce-scatter", num_gpus=2) == {"error"}


def test_the_recipe_knows_what_auto_becomes() -> None:
    config = {**zero(2), "gradient_accumulation_steps": "auto"}
    run = {"recipe": recipe(training={"gradient_accumulation_steps": 4})}
    version = version_with("zero2-accumulation")
    assert ("gradient_accumulation_steps", "error") in said(
        "known-defect", config, deepspeed_version=version, **run
    )


MASTERS = {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}

CHANGED: dict[str, tuple[Mapping[str, Any], str, str]] = {
    "communication-bf16": (
        {**MICRO, "communication_data_type": "bf16"},
        "communication_data_type",
        "error",
    ),
    "script-scheduler-first": (
        schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2),
        "scheduler",
        "info",
    ),
    "universal-zero3": (
        {**zero(3), "checkpoint": {"load_universal": True}},
        "checkpoint.load_universal",
        "error",
    ),
    "warmup-maximum": ({**schedule("WarmupLR"), **ADAMW}, "scheduler.params", "error"),
    "bf16-without-zero": ({**zero(0), **BF16}, "bf16.enabled", "info"),
    "master-weights-stages": ({**zero(3), **MASTERS}, "fp16.fp16_master_weights_and_grads", "error"),
    "muon-zero3": ({**zero(3), **MUON}, "optimizer.type", "error"),
    "buffers-keep-format": ({**zero(1), **FP16}, "", "info"),
}
"""Change of meaning -> a config that meets it, and what is said of it."""


def test_every_change_is_looked_for_or_said_not_to_matter() -> None:
    assert set(MEETINGS_WITH_CHANGES) == set(CHANGED)
    assert set(MEETINGS_WITH_CHANGES) | NO_MATTER == {change.id for change in CHANGES}
    assert not set(MEETINGS_WITH_CHANGES) & NO_MATTER


@pytest.mark.parametrize("name", CHANGED)
def test_changes_of_meaning(name: str) -> None:
    config, path, severity = CHANGED[name]
    (change,) = [change for change in CHANGES if change.id == name]
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


KEYS: list[tuple[str, Mapping[str, Any], list[str]]] = [
    ("0.17.0", zero(2, zenflow={}), ["zero_optimization.zenflow"]),
    ("0.17.5", zero(2, zenflow={}), []),
    ("0.16.4", {**zero(2), "torch_autocast": {"enabled": True, "dtype": "bf16"}}, ["torch_autocast"]),
    ("0.16.4", {**zero(2), "torch_autocast": {"enabled": False}}, []),
    ("0.16.4", {**zero(2), "_torch_autocast": {"enabled": True}}, []),
    ("0.16.4", {**zero(2), "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}}, []),
    ("0.16.3", {**zero(3), "aio": {"intra_op_parallelism": 8}}, ["aio.intra_op_parallelism"]),
    ("0.16.4", {**zero(3), "aio": {"intra_op_parallelism": 8}}, []),
    ("0.14.0", zero(3, prefetch_bucket_size=1e8), []),
]


@pytest.mark.parametrize(("version", "config", "paths"), KEYS)
def test_keys_of_other_releases(version: str, config: Mapping[str, Any], paths: list[str]) -> None:
    asked = said("key-of-later-version", config, deepspeed_version=parse_version(version))
    assert asked == [(path, "error") for path in paths]
    assert said("key-of-later-version", config) == []


def test_optimizers_of_other_releases() -> None:
    config = {**zero(1), **MUON}
    rule = "optimizer-of-later-version"
    assert said(rule, config, deepspeed_version=Version(0, 17, 5)) == [("optimizer.type", "error")]
    assert said(rule, config, deepspeed_version=Version(0, 17, 6)) == []
    sgd = {**zero(1), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    assert said(rule, sgd, deepspeed_version=Version(0, 14, 0)) == []


def test_defaults_of_other_releases() -> None:
    rule, old = "default-of-version", {"deepspeed_version": Version(0, 18, 0)}
    config = {**zero(2, **CPU), **BF16}
    messages = [finding.message for finding in found(rule, config, **old)]
    assert len(messages) == 3
    assert messages[0].startswith("'gradient_clipping' is absent: DeepSpeed 0.18.0 takes 0.0, 0.19.8 1.0")
    assert any("offload_optimizer.pin_memory" in message for message in messages)
    assert said(rule, config, **old, target="trainer") == said(
        rule, {**config, "gradient_clipping": 1.0}, **old
    )
    assert said(rule, config, deepspeed_version=NEWEST) == said(rule, config) == []


@pytest.mark.parametrize("version", [None, *map(parse_version, ("0.14.0", "0.17.1", "0.19.8"))], ids=str)
def test_a_plain_config_is_good_everywhere(version: Version | None) -> None:
    config = {**zero(2), **BF16, **ADAMW, "gradient_clipping": 1.0}
    findings = check_config(config, deepspeed_version=version).findings
    assert [finding for finding in findings if finding.severity == "error"] == []

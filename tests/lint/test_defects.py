"""ConfigView defects of DeepSpeed: configs that meet each, and configs that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.config.conditions import Condition
from zerokit.config.load import load_ds_config
from zerokit.findings import Finding
from zerokit.lint.condition_words import condition
from zerokit.lint.defects import KNOWN_DEFECTS
from zerokit.lint.examples import llama_8b, mixture_of_experts, recipe
from zerokit.lint.explain import explain
from zerokit.lint.run import all_rules
from zerokit.lint.subject import Subject
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
    "zero12-muon-reduce-scatter": ({**zero(1), **MUON}, {"num_gpus": 2}, "zero_optimization"),
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

NO_OVERLAP = zero(1, overlap_comm=False)
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
RECIPE = {"recipe": recipe()}

MISSES: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("overlap-wait", zero(3, overlap_comm=True), {}),
    ("overlap-wait", zero(2), {}),
    ("overlap-buffer-index", zero(2, overlap_comm=True, contiguous_gradients=False), {}),
    ("overlap-does-not-overlap", NO_OVERLAP, {}),
    ("overlap-buffer-lifetime", NO_OVERLAP, {}),
    ("overlap-producer-streams", zero(2, overlap_comm=True), {}),
    ("zero3-gradient-stream", zero(2), {}),
    ("zero2-accumulation", {**zero(2), "gradient_accumulation_steps": "auto"}, {}),
    ("zero2-accumulation", {**zero(2, **CPU), "gradient_accumulation_steps": 8}, {}),
    ("zero2-accumulation", {**zero(1), "gradient_accumulation_steps": 8}, {}),
    ("zero2-offload-accumulation", {**zero(2, **CPU), "gradient_accumulation_steps": 2}, {}),
    ("zero2-accumulation-format", {**zero(2), **BF16, "gradient_accumulation_steps": 2}, {}),
    ("zero2-accumulation-format", {**zero(2), **FP32_SUMS, "gradient_accumulation_steps": 2}, {}),
    ("zero1-not-divided", {**zero(1, **CPU), **BF16, **FP32_SUMS}, {}),
    ("bf16-optimizer-accumulation", {**zero(1), **BF16, **FP32_SUMS}, {"num_gpus": 1}),
    (
        "stage0-fp16-no-step",
        {**zero(0), **FP16, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}},
        {},
    ),
    ("stage0-bf16-accumulates", {**zero(1), **BF16}, {}),
    ("stage0-bf16-accumulates", {**zero(0), **BF16, **ADAMW}, {}),  # it is FusedAdam then
    ("stage0-bf16-checkpoint", {**zero(0), **FP16}, {}),
    ("stage0-frozen-memory", {**zero(0), **BF16}, RECIPE),
    ("zero1-fp16-overflow", {**zero(1), **FP16}, {"num_gpus": 1}),
    ("zero12-infinite-norm", {**zero(2), **FP16, "gradient_clipping": 0.0}, {}),
    ("zero3-mixed-dtypes", {**zero(3), **BF16}, {}),
    ("zero3-quantized-bf16", {**zero(3, zero_quantized_weights=True), **FP16}, {}),
    ("hpz-stale-copy", zero(3, zero_hpz_partition_size=1), {}),
    ("hpz-small-parameters", zero(3), {}),
    ("all-reduce-fetch-call", zero(3, stage3_use_all_reduce_for_fetch_params=True), {"num_gpus": 1}),
    ("all-reduce-fetch-padding", zero(3, stage3_use_all_reduce_for_fetch_params=False), {}),
    ("leaf-module-race", zero(3), {"model": llama_8b()}),
    ("zero3-frozen-checkpointing", zero(3), {"recipe": recipe(peft={"type": "lora"})}),
    ("zero3-wrapper-hooks", zero(3), {"recipe": recipe(peft={"type": "lora"})}),
    ("zero3-reduce-one-by-one", zero(2), {}),
    ("slow-backward-hooks", zero(0), {}),
    ("pin-memory-ignored", zero(2, offload_optimizer={"device": "cpu", "pin_memory": True}), {}),
    ("super-offload-start", zero(3, **CPU), {}),
    ("super-offload-groups", zero(2, offload_optimizer={"device": "cpu", "super_offload": True}), {}),
    ("nvme-open-files", zero(3, offload_param={"device": "cpu"}), {}),
    ("nvme-hang", zero(3), {}),
    ("nvme-save-race", zero(3, **CPU), {}),
    ("zenflow-backward", zero(2, **CPU), {}),
    ("fused-adam-large", {**zero(2), **ADAMW}, {"model": llama_8b(), "num_gpus": 8}),
    ("muon-untested", {**zero(1), **MUON, "zero_allow_untested_optimizer": True}, {}),
    ("zero12-muon-reduce-scatter", {**zero(1, reduce_scatter=False), **MUON}, {"num_gpus": 2}),
    ("muon-offload", {**zero(1), **MUON}, {}),
    ("warmup-first-step", schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2), {}),
    ("warmup-groups", schedule("WarmupLR", warmup_max_lr=0.1), {}),
    ("cosine-no-decay", schedule("WarmupCosineLR", total_num_steps=11, warmup_num_steps=10), {}),
    ("one-cycle-stairs", schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2), {}),
    ("one-cycle-lists", schedule("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2), {}),
    ("universal-zero3-nodes", {**zero(3), "checkpoint": {"load_universal": False}}, {}),
]


def version_with(defect: str) -> Version:
    affects = KNOWN_DEFECTS[defect].affects
    return next(version for version in map(parse_version, reversed(SUPPORTED)) if affects(version))


def test_every_defect_that_a_config_shows_has_examples_for_and_against() -> None:
    shown = {name for name, defect in KNOWN_DEFECTS.items() if defect.when is not None}
    assert set(MEETS) == {name for name, _, _ in MISSES} == shown
    assert not {name for name in shown if KNOWN_DEFECTS[name].affects(NEWEST)}


def test_a_name_explains_one_thing() -> None:
    assert not set(KNOWN_DEFECTS) & set(all_rules())


def test_every_other_defect_says_what_brings_it_about_or_which_rule_finds_it() -> None:
    others = [defect for defect in KNOWN_DEFECTS.values() if defect.when is None]
    assert all(bool(defect.beyond) != (defect.rule in all_rules()) for defect in others)


@pytest.mark.parametrize("name", KNOWN_DEFECTS)
def test_a_defect_is_explained_with_the_words_of_its_condition(name: str) -> None:
    defect, text = KNOWN_DEFECTS[name], explain(name)
    assert text.startswith(f"# {name}\n\n{defect.summary}.\n")
    if defect.when is not None:
        assert f"- When: {defect.when.words}\n" in text
        # Whoever meets it is named the key, and finds that key among the words.
        last = defect.at.split(".")[-1]
        words = {"stage": "zero stage", "enabled": defect.at.split(".")[0], "type": "the ", "params": "cycle"}
        assert words.get(last, last) in defect.when.words.lower()
    for fact in (defect.beyond, defect.rule, defect.advice, defect.source):
        assert fact in text


def test_conditions_are_joined_with_their_words() -> None:
    two, offloads = condition("ZeRO stage 2"), Condition("offload", lambda s, path: True)
    either, several = condition("bf16 or fp16"), condition("more than one GPU")
    assert (two & offloads & either).words == "ZeRO stage 2, offload, bf16 or fp16"
    subject = Subject(config=load_ds_config(zero(2)), written=zero(2))
    assert (two & offloads).holds(subject)
    assert not (two & offloads & either).holds(subject)
    assert not (condition("ZeRO stage 1 or 3") & offloads).holds(subject)
    assert condition("ZeRO stage 1, 2 or 3").holds(subject)
    assert (two & several).counts_gpus
    assert not either.counts_gpus
    with pytest.raises(KeyError, match="ZeRO stages"):
        condition("ZeRO stages 2")


@pytest.mark.parametrize("name", MEETS)
def test_a_config_that_meets_a_defect(name: str) -> None:
    config, run, path = MEETS[name]
    defect, version = KNOWN_DEFECTS[name], version_with(name)
    met = of(name, found("known-defect", config, deepspeed_version=version, **run))
    assert [".".join(map(str, finding.path)) for finding in met] == [path]
    assert str(version) in met[0].message
    assert met[0].severity in ("error", "warning")
    fixed = defect.span.until
    assert fixed is not None
    assert str(fixed) in str(met[0].hint)
    assert of(name, found("known-defect", config, deepspeed_version=fixed, **run)) == []


@pytest.mark.parametrize(("name", "config", "run"), MISSES)
def test_a_config_that_does_not(name: str, config: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    findings = found("known-defect", config, deepspeed_version=version_with(name), **run)
    assert of(name, findings) == []


def of(name: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.message.endswith(f"zerokit explain {name})")]


def test_what_may_happen_is_no_error() -> None:
    def severities(name: str, **run: Any) -> set[str]:
        findings = found("known-defect", MEETS[name][0], deepspeed_version=version_with(name), **run)
        return {finding.severity for finding in of(name, findings)}

    assert severities("zero2-accumulation") == {"error"}
    assert severities("overlap-buffer-index") == {"error"}
    assert severities("overlap-buffer-lifetime") == {"warning"}
    assert severities("slow-backward-hooks") == {"warning"}
    assert severities("zero12-muon-reduce-scatter") == {"warning"}
    assert severities("zero12-muon-reduce-scatter", num_gpus=2) == {"error"}


def test_the_recipe_knows_what_auto_becomes() -> None:
    config = {**zero(2), "gradient_accumulation_steps": "auto"}
    run = {"recipe": recipe(training={"gradient_accumulation_steps": 4})}
    version = version_with("zero2-accumulation")
    assert ("gradient_accumulation_steps", "error") in said(
        "known-defect", config, deepspeed_version=version, **run
    )

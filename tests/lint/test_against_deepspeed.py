"""What the rules say of refusals and failures, against what the installed DeepSpeed does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lint.asking import MICRO, RULES, deepspeed_cases, found, zero
from tests.tiny import launch
from zerokit.lint import check_config
from zerokit.resolving.run import Run

pytestmark = pytest.mark.torch


REFUSED_EXAMPLES = {
    "zero-option": "'sum' is not supported with ZeRO stage 3",
    "grad-norm-off": "compute_grad_norm=false requires gradient_clipping=0",
    "prescaled-gradients": "pre-scale gradients is not yet supported with ZeRO-2",
    "legacy-stage1": "The deprecated version of ZeRO Stage 1",
    "accumulation-overlap": "managed_gradient_accumulation=False supports ZeRO overlap_comm only",
    "pipeline-loading-stage": "Only stage3 support for pipeline checkpoint loading",
    "odd-allgather-bucket": "allgather_bucket_size must be a multiple",
    "nvme-path": "expected str, bytes or os.PathLike",
    "zenflow-offload": "Zenflow must be used with cpu offload",
    "zenflow-interval": "Select interval must be greater or equal to update interval",
    "zenflow-auto-update": "nan",
    "zenflow-overlap": "should be used with overlap_comm",
    "quantized-gradients-scatter": "reduce_scatter should also be enabled",
    "expert-parallel-size": "must divide the stage size",
    "expert-parallel-backend": "comm_max_tokens_per_rank must be a positive integer",
}
"""Rule -> what DeepSpeed says to the rule's bad example; it trains with the good one."""

OTHERS: dict[str, tuple[str, dict[str, Any], str]] = deepspeed_cases("others")
"""What is tried -> the rule, a config, and what DeepSpeed says to it on one rank."""

HARMLESS: dict[str, tuple[str, dict[str, Any]]] = {
    "stage 3 keys in stage 2": ("stage3-key", zero(2, stage3_max_live_parameters=1)),
    "stage 1 and 2 keys in stage 3": ("stage12-key", zero(3, allgather_bucket_size=500_000_001)),
    "keys of ZeRO in stage 0": ("stage0-keys", zero(0, reduce_bucket_size=1)),
    "dead key": ("dead-key", zero(2, allgather_partitions=False)),
    "prescaled in stage 1": ("prescaled-gradients", {**zero(1), "prescale_gradients": True}),
    "empty offload": ("offload-empty", zero(2, offload_optimizer={})),
    "NVMe in stage 2": ("nvme-stage", zero(2, offload_optimizer={"device": "nvme"})),
    "parameters offloaded in stage 2": ("offload-param-stage", zero(2, offload_param={"device": "nvme"})),
    "bucket of size 0": ("allgather-bucket", zero(2, allgather_bucket_size=0)),
    "bucket of one element": ("tiny-bucket", zero(2, reduce_bucket_size=1)),
    "tp_size without autotp_size": (
        "tensor-parallel-sizes",
        {**zero(1), "tensor_parallel": {"tp": {"tp_size": 2}}},
    ),
    "data-parallel ranks alone": ("data-parallel-size", {**zero(1), "data_parallel_size": 3}),
    "hybrid engine without its switch": (
        "hybrid-engine-off",
        {**zero(1), "hybrid_engine": {"max_out_tokens": 9}},
    ),
}
"""Configs that DeepSpeed trains with although a rule finds something."""


NOT_ON_ONE_CPU = {
    "nvme-path",
    "expert-parallel-size",
    "expert-parallel-backend",
    "expert-parallel-combination",
}
"""Their good examples need a drive, or ranks that share experts."""


def _on_a_cpu(config: dict[str, Any]) -> dict[str, Any]:
    """With ZenFlow in stage 2, to which its rules apply alike: its stage 3 calls CUDA in a step."""
    zero = config.get("zero_optimization", {})
    return {**config, "zero_optimization": {**zero, "stage": 2}} if "zenflow" in zero else config


def _run_of(rule: str) -> dict[str, Any]:
    return {**RULES[rule].facts, "num_gpus": 1}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cases: dict[str, Any] = {}
    for rule in REFUSED_EXAMPLES:
        for kind in ("bad",) if rule in NOT_ON_ONE_CPU else ("bad", "good"):
            config = _on_a_cpu({**MICRO, **getattr(RULES[rule], kind)})
            cases[f"{rule}: {kind}"] = {"config": config, "resume": rule == "pipeline-loading-stage"}
    for name, (rule, config, _) in OTHERS.items():
        cases[name] = {"config": config, "resume": rule == "universal-left-on"}
    for name, (_, config) in HARMLESS.items():
        cases[name] = {"config": config}
    folder = tmp_path_factory.mktemp("one_process")
    asked, answered = folder / "cases.json", folder / "outcomes.json"
    asked.write_text(json.dumps(cases), encoding="utf-8")
    script = Path(__file__).with_name("one_process.py")
    result = launch([script, asked, answered], ranks=1, launcher="none", cwd=folder)
    assert result.returncode == 0, result.stderr[-2000:]
    answers: dict[str, str] = json.loads(answered.read_text(encoding="utf-8"))
    return answers


@pytest.mark.parametrize(("rule", "text"), REFUSED_EXAMPLES.items())
def test_deepspeed_stops_at_a_bad_example(rule: str, text: str, outcomes: dict[str, str]) -> None:
    assert text in outcomes[f"{rule}: bad"]
    assert {finding.severity for finding in found(rule, RULES[rule].bad, **_run_of(rule))} == {"error"}


@pytest.mark.parametrize("rule", sorted(set(REFUSED_EXAMPLES) - NOT_ON_ONE_CPU))
def test_deepspeed_trains_with_a_good_example(rule: str, outcomes: dict[str, str]) -> None:
    assert outcomes[f"{rule}: good"] == "ok"


@pytest.mark.parametrize("name", OTHERS)
def test_deepspeed_stops_at_the_other_cases(name: str, outcomes: dict[str, str]) -> None:
    rule, config, text = OTHERS[name]
    assert text in outcomes[name]
    assert found(rule, config, num_gpus=1)


@pytest.mark.parametrize("name", HARMLESS)
def test_deepspeed_trains_where_a_rule_speaks_of_no_effect(name: str, outcomes: dict[str, str]) -> None:
    rule, config = HARMLESS[name]
    assert outcomes[name] == "ok"
    assert found(rule, config, num_gpus=1)


def test_what_zerokit_has_nothing_against_trains(outcomes: dict[str, str]) -> None:
    for rule in sorted(set(REFUSED_EXAMPLES) - NOT_ON_ONE_CPU):
        assert check_config(RULES[rule].good, Run.of(num_gpus=1)).ok

"""What the rules say of refusals and failures, against what the installed DeepSpeed does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.json_data import load_json
from tests.lint.asking import MICRO, RULES, deepspeed_cases, found
from tests.tiny import launch
from zerokit.lint import check_config
from zerokit.resolving.run import Run

ROWS = load_json("lint/test_against_deepspeed.json")

pytestmark = pytest.mark.torch


REFUSED_EXAMPLES = ROWS["refused_examples"]
"""Rule -> what DeepSpeed says to the rule's bad example; it trains with the good one."""

OTHERS: dict[str, tuple[str, dict[str, Any], str]] = deepspeed_cases("others")
"""What is tried -> the rule, a config, and what DeepSpeed says to it on one rank."""

HARMLESS: dict[str, tuple[str, dict[str, Any]]] = ROWS["harmless"]
"""Configs that DeepSpeed trains with although a rule finds something."""


NOT_ON_ONE_CPU = {"nvme-path", "expert-parallel-size", "expert-parallel-backend", "expert-parallel-combination"}
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

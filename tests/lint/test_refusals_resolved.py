"""What `check` calls an error because the run stops, `resolve` refuses, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given

from tests.config.strategies import configs
from tests.each import each
from tests.examples import examples
from tests.json_data import load_json
from tests.lint.asking import RULES
from zerokit.documents import Document, dotted
from zerokit.errors import ConfigError
from zerokit.lint import check_document
from zerokit.lint.refusals import _OF_THE_FILE, with_refusals
from zerokit.lint.rule import Hit, Rule
from zerokit.lint.subject import Subject
from zerokit.resolving.run import Run
from zerokit.resolving.trace import Lost, Refused, Resolution, resolve

FAULTS = load_json("data/config_faults.json")

REFUSED = ("rejected at parse", "rejected at initialize", "fails only at first step")
"""Verdicts that begin so: DeepSpeed 0.19.8 stopped."""

NOT_BY_THE_CONFIG = {
    "C09": "the folder of NVMe is looked for on the machine that trains",
    "H04": "a kernel that the CPU lacks, on which it was tried",
    "O21": "the script's optimizer",
    "O24": "the script's optimizer",
    "O25": "the script gave no optimizer",
    "O26": "the script gave no optimizer",
    "O30": "a library that was not installed",
}
"""Faults that stopped DeepSpeed, though not by what stands in the config."""

STOPS_ELSEWHERE = {
    "R81": "one rank made a third of a data-parallel rank, and the batch of one was given",
    "C04": "on the CPU, on which it was tried, nothing is in the wrong place",
}
"""Configs that are refused, and with which DeepSpeed trained."""

NOT_ALWAYS = {"autocast-and-precision", "offload-without-zero"}
"""Rules of which not every error stops the run."""


def resolved(config: Mapping[str, Any], target: Any = "deepspeed", num_gpus: int = 1) -> Resolution | None:
    """As `zerokit resolve` does; None where the config cannot be read at all, which is a refusal too."""
    document = Document(config, "ds.json")
    run = Run.of(target=target, num_gpus=num_gpus)
    try:
        resolution = resolve(document, run)
    except ConfigError:
        return None
    return with_refusals(resolution, document, run)


def stopping(config: Mapping[str, Any], target: Any = "deepspeed", num_gpus: int = 1) -> set[str]:
    """The keys of the findings that say that the run stops."""
    run = Run.of(target=target, num_gpus=num_gpus)
    findings = check_document(Document(config, "ds.json"), run).findings
    return {
        dotted(finding.path)
        for finding in findings
        if finding.severity == "error" and RULES[finding.rule or ""].stops and finding.rule not in NOT_ALWAYS
    }


def names(resolution: Resolution) -> set[str]:
    return {one.name for one in resolution.refused}


@each(
    [
        rule
        for rule in RULES.values()
        if rule.stops and rule.severity == "error" and not {"model", "recipe"} & set(rule.needs)
    ],
    by=lambda rule: rule.topic,
    named=lambda rule: rule.id,
)
def test_every_rule_that_stops_a_run_is_known_to_resolve(rule: Any) -> None:
    run = {"target": rule.given.get("target", "deepspeed"), "num_gpus": rule.given.get("num_gpus", 1)}
    bad = resolved(rule.bad, **run)
    assert bad is not None
    assert bad.refused or rule.id == "autocast-and-precision"  # its example trains, though to no purpose
    assert stopping(rule.bad, **run) <= names(bad)


def test_what_no_rule_refuses_is_not_refused() -> None:
    for rule in RULES.values():
        if rule.check is None or rule.needs or rule.given:
            continue
        resolution = resolved(rule.good, num_gpus=8)
        assert resolution is not None
        assert resolution.refused == (), rule.id


@each(
    [case for case in FAULTS if isinstance(case.get("config"), dict)],
    by=lambda case: case["id"][0],
    named=lambda case: case["id"],
)
def test_a_fault_at_which_deepspeed_stopped_is_refused(case: dict[str, Any]) -> None:
    ranks = case.get("opts", {}).get("world", 1)
    resolution = resolved(case["config"], num_gpus=ranks)
    if resolution is None:
        return
    assert stopping(case["config"], num_gpus=ranks) <= names(resolution)
    stopped = case["verdict"].startswith(REFUSED) and case["id"] not in NOT_BY_THE_CONFIG
    assert bool(resolution.refused) == (stopped or case["id"] in STOPS_ELSEWHERE)


def test_no_rule_that_needs_the_recipe_runs_after_the_recipe_is_gone() -> None:
    of_recipes = [rule for rule in RULES.values() if rule.stops and "recipe" in rule.needs]
    assert of_recipes
    assert {rule.topic for rule in of_recipes} <= set(_OF_THE_FILE)


def test_different_refusals_of_one_key_are_all_reported() -> None:
    document = Document({"train_micro_batch_size_per_gpu": 1}, "ds.json")
    run = Run.of(target="deepspeed", num_gpus=1)
    resolution = resolve(document, run)
    assert not resolution.refused
    said = [Refused("a", "one"), Refused("a", "two"), Refused("b", "three"), Refused("a", "one")]

    def found(subject: Subject, rules: Iterable[Rule]) -> Iterator[Refused]:
        yield from said

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("zerokit.lint.refusals.refusals", found)
        assert with_refusals(resolution, document, run).refused == tuple(said[:3])
        own = replace(resolution, refused=(Refused("a", "in other words"),), lost=(Lost("b", "not read"),))
        told = with_refusals(own, document, run)
    assert told.refused == (Refused("a", "in other words"), Refused("b", "three"))
    assert told.lost == ()


def test_each_rule_runs_once_and_its_hint_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counted(rule: Rule) -> Rule:
        def check(subject: Subject) -> Iterator[Hit]:
            ran.append(rule.id)
            yield Hit(("bf16",), f"says {rule.id}", "Fix it", severity="error")

        return replace(rule, check=check, stops=True)

    for rule in [one for one in RULES.values() if one.check is not None and not one.needs]:
        monkeypatch.setitem(RULES, rule.id, counted(rule))
    resolution = resolved({"train_micro_batch_size_per_gpu": 1})
    assert resolution is not None
    assert len(ran) == len({*ran}) > 50
    assert {one.hint for one in resolution.refused} == {"Fix it"}


def has_auto(data: Any) -> bool:
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return data == "auto" or any(map(has_auto, parts))


@given(configs().filter(lambda config: not has_auto(config)))
@examples(120, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
def test_check_and_resolve_refuse_the_same(config: dict[str, Any]) -> None:
    resolution = resolved(config)
    if resolution is not None:
        says = stopping(config)
        assert says <= names(resolution)
        sometimes = {"zero_optimization.offload_optimizer", "zero_optimization.cpu_offload", "torch_autocast.enabled"}
        assert names(resolution) - sometimes <= says

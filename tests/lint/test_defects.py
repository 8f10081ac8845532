"""ConfigView defects of DeepSpeed: configs that meet each, and configs that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.json_data import load_json
from tests.lint.asking import found, zero
from zerokit.config.conditions import Condition
from zerokit.config.load import load_ds_config
from zerokit.findings import Finding
from zerokit.lint import examples
from zerokit.lint.condition_words import condition
from zerokit.lint.defects import KNOWN_DEFECTS
from zerokit.lint.examples import recipe
from zerokit.lint.explain import explain
from zerokit.lint.run import all_rules
from zerokit.lint.subject import Subject
from zerokit.releases.versions import NEWEST, SUPPORTED, Version, parse_version


def made(fact: str, value: Any) -> Any:
    """A fact of a run: a recipe of its sections, a model of the examples by its name, or the value."""
    if fact == "model":
        return getattr(examples, value)()
    return recipe(**value) if fact == "recipe" else value


_CASES = load_json("lint/defect_cases.json")
MEETS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    name: (config, {fact: made(fact, value) for fact, value in run.items()}, path)
    for name, config, run, path in _CASES["meets"]
}
"""Defect -> a config that meets it, what is known of the run, and where it is named."""
MISSES: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    (name, config, {fact: made(fact, value) for fact, value in run.items()}) for name, config, run in _CASES["misses"]
]
"""Configs that do not meet a defect."""


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
    assert (defect.better or str(fixed)) in str(met[0].hint)
    assert of(name, found("known-defect", config, deepspeed_version=fixed, **run)) == []


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

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.each import each
from tests.lint.asking import found
from tools.site import index
from zerokit.lint.outputs import CheckedFile, text_lines
from zerokit.lint.rewrite import edit_data
from zerokit.lint.rule import NEEDS, Rule
from zerokit.lint.rule_pages import check_example, page
from zerokit.lint.run import FACTS, Report, all_rules, check_config
from zerokit.resolving.run import Run

INDEX = Path(__file__).parents[2] / "docs" / "rules.md"
RULES = list(all_rules().values())

each_rule = each(RULES, by=lambda rule: rule.topic, named=lambda rule: rule.id)


@cache
def checked(rule: str, kind: Literal["bad", "good"]) -> Report:
    """What the check reports of a rule's example."""
    return check_example(all_rules()[rule], getattr(all_rules()[rule], kind))


def test_there_are_at_least_60_rules() -> None:
    assert len(RULES) >= 60


def test_the_index_is_that_which_the_rules_make() -> None:
    assert INDEX.read_text() == index(with_pages=False), "run python -m tools.site"


@each_rule
def test_the_bad_example_has_the_mistake(rule: Rule) -> None:
    found = [finding for finding in checked(rule.id, "bad").findings if finding.rule == rule.id]
    assert found
    for finding in found:
        assert finding.hint
        for text in (finding.message, finding.hint):
            assert "\n" not in text
            assert not text.endswith((".", "!"))
            assert text.strip() == text


@each_rule
def test_the_good_example_has_no_error_and_not_the_mistake(rule: Rule) -> None:
    report = checked(rule.id, "good")
    assert [finding for finding in report.findings if finding.severity == "error"] == []
    assert rule.id not in {finding.rule for finding in report.findings}


@each_rule
def test_a_rule_says_what_happens_why_and_where_that_is_from(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
    assert "\n" not in rule.title
    assert not rule.title.endswith(".")
    assert len(rule.text) > 80
    assert "\n" in rule.text
    assert rule.check is None or "Source:" in rule.text


@each_rule
def test_the_examples_give_what_the_rule_needs(rule: Rule) -> None:
    assert set(rule.needs) <= set(NEEDS)
    if rule.needs:
        assert all(FACTS[need](Run.of(**rule.facts)) is not None for need in rule.needs)


@each_rule
def test_a_page_shows_what_check_prints(rule: Rule) -> None:
    name = "default_config.yaml" if rule.check_launch else "ds_config.json"
    lines = text_lines([CheckedFile(name, checked(rule.id, "bad"))])
    printed = ["".join(text for text, _ in line) for line in lines]
    said = re.findall(r"says:\n\n```text\n(.*?)\n```", page(rule), re.DOTALL)
    assert said[0].splitlines() == [line for line in printed if line.endswith(f"[{rule.id}]")]


def test_the_index_has_every_rule_once() -> None:
    row = r'^\| <a id="([a-z0-9-]+)"></a>'
    linked = re.findall(rf"{row}\[\1\]\(rules/\1\.md\)", index(with_pages=True), re.MULTILINE)
    named = re.findall(rf"{row}\1 ", index(with_pages=False), re.MULTILINE)
    assert sorted(linked) == sorted(named) == sorted(all_rules())


@each([rule for rule in RULES if rule.check], by=lambda rule: rule.topic, named=lambda rule: rule.id)
def test_fixes_fix_what_they_are_for(rule: Rule) -> None:
    config: Any = rule.bad
    for finding in found(rule.id, config, **rule.facts):
        for edit in finding.fix:
            config = edit_data(config, edit)
    if config is not rule.bad:
        assert found(rule.id, config, **rule.facts) == []
        assert check_config(config, Run.of(**rule.facts)).ok

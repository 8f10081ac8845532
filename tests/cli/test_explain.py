from collections.abc import Callable

from tests.cli.conftest import refused
from zerokit.lint.explain import explain, overview, topic_names
from zerokit.reporting.tables import aligned

Run = Callable[..., tuple[int, str, str]]


def test_keys_and_rules_are_explained(zerokit: Run) -> None:
    for name in ("zero_optimization.stage", "unknown-key", "pin_memory"):
        assert zerokit("explain", name) == (0, explain(name), "")


def test_a_topic_needs_no_quotes(zerokit: Run) -> None:
    assert zerokit("explain", "long", "context") == (0, explain("long context"), "")


def test_what_a_misspelt_key_leaves_is_told_of_old_and_new_releases(zerokit: Run) -> None:
    key, rule = (" ".join(zerokit("explain", name)[1].split()) for name in ("gradient_clipping", "unknown-key"))
    assert "Default 1.0 since DeepSpeed 0.19.3, 0 before" in key
    assert "with `gradient_cliping` it clips at 1.0 (not at all before 0.19.3)" in rule


def test_without_a_name_all_rules_are_listed(zerokit: Run) -> None:
    listed = "\n".join(aligned(overview()))
    assert zerokit("explain") == (
        0,
        f"{listed}\n\nTopics: {topic_names()}\n\n"
        "For details: zerokit explain RULE, zerokit explain KEY, or zerokit explain TOPIC\n",
        "",
    )


def test_what_there_is_not_gives_2(zerokit: Run) -> None:
    assert "Did you mean 'zero_optimization.overlap_comm'?" in refused(zerokit, "explain", "overlap_com")
    assert "Did you mean 'gradient_clipping'?" in refused(zerokit, "explain", "gradient-cliping")

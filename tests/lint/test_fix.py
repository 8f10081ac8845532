import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.json_data import load_json
from zerokit.documents import Document, parse_json
from zerokit.findings import Edit, Finding, Move, Remove, SetValue
from zerokit.lint import Report, check_config, check_document
from zerokit.lint.fix import MOST_FIXES, Fixed, fix_document, unified_diff
from zerokit.lint.run import all_rules
from zerokit.resolving.run import Run

_CASES = load_json("data/config_faults.json")
FAULTS = {
    case["id"]: case["config"] if isinstance(case["config"], str) else json.dumps(case["config"], indent=2)
    for case in _CASES
    if case.get("config") and case["id"] != "F01"  # F01 has one key twice, and cannot be read
}
"""The text of configs with one mistake each."""

Find = Callable[[Any], Iterator[tuple[str, tuple[Edit, ...]]]]


def checker(find: Find) -> Callable[[Document], Report]:
    def check(document: Document) -> Report:
        return Report(tuple(Finding((), m, rule=m, fix=fix) for m, fix in find(document.data)), {})

    return check


def fix(text: str, find: Find) -> tuple[str | None, list[str]]:
    result = fix_document(parse_json(text, lenient=True), checker(find))
    return result.document.text, [finding.message for finding in result.done]


def test_fixes_are_made_one_after_the_other_and_listed() -> None:
    def find(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        if data["a"] == 1:
            yield "a", (SetValue(("a",), 2),)
        if data["b"] == 1:
            yield "b", (SetValue(("b",), 2),)

    assert fix('{"a": 1, "b": 1}', find) == ('{"a": 2, "b": 2}', ["a", "b"])


def test_of_fixes_that_exclude_each_other_the_first_is_made() -> None:
    def find(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        if "old" in data and "new" in data:
            yield "remove old", (Remove(("old",)),)
            yield "remove new", (Remove(("new",)),)

    assert fix('{"old": 1, "new": 2}', find) == ('{"new": 2}', ["remove old"])


def test_a_fix_may_bring_out_another() -> None:
    def find(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        if "zer" in data:
            yield "rename", (Move(("zer",), ("zero",)),)
        elif data["zero"] == "2":
            yield "quotes", (SetValue(("zero",), 2),)

    assert fix('{"zer": "2"}', find) == ('{"zero": 2}', ["rename", "quotes"])


def test_a_fix_that_did_harm_is_made_when_another_has_taken_the_harm_away() -> None:
    def check(document: Document) -> Report:
        data, found = document.data, []
        if data["a"] == 1:
            found.append(Finding(("a",), "a is 1", rule="a", fix=(SetValue(("a",), 2),)))
        if data["b"] == 1:
            found.append(Finding(("b",), "b is 1", rule="b", fix=(SetValue(("b",), 2),)))
        if (data["a"] == 2 and data["b"] == 1) or data["a"] == data.get("c"):
            found.append(Finding(("a",), "a does not go with b", severity="error", rule="both"))
        return Report(tuple(found), {})

    fixed = fix_document(parse_json('{"a": 1, "b": 1}', lenient=True), check)
    assert fixed.document.text == '{"a": 2, "b": 2}'
    assert [finding.message for finding in fixed.done] == ["b is 1", "a is 1"]
    assert fixed.report.findings == ()
    # What harms to the end is left, with the reason.
    harmful = fix_document(parse_json('{"a": 1, "b": 1, "c": 2}', lenient=True), check)
    assert harmful.document.text == '{"a": 1, "b": 2, "c": 2}'
    (left,) = harmful.report.findings
    assert (left.fix, left.unfixed) == ((), "the fix would cause another error: a does not go with b")


def test_fixes_that_undo_each_other_or_do_not_suit_come_to_an_end() -> None:
    def flip(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        yield f"was {data['a']}", (SetValue(("a",), 1 - data["a"]),)

    assert fix('{"a": 0}', flip) == ('{"a": 0}', ["was 0", "was 1"])

    def absent(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        yield "absent", (Remove(("absent",)),)

    assert fix('{"a": 0}', absent) == ('{"a": 0}', [])

    def count(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        yield f"was {data['a']}", (SetValue(("a",), data["a"] + 1),)

    assert fix('{"a": 0}', count)[0] == f'{{"a": {MOST_FIXES}}}'


def test_a_fix_of_several_steps_is_made_whole_or_not_at_all() -> None:
    def find(data: Any) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        yield "half", (SetValue(("a",), 1), Remove(("absent",)))

    assert fix('{"a": 0}', find) == ('{"a": 0}', [])


@pytest.mark.parametrize("name", ["enable", "Enabled"])
def test_no_fix_makes_an_error_of_the_key_that_it_fixes(name: str) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "fp16": {name: True}}
    fixed = fix_document(parse_json(json.dumps(config), lenient=True), check_document)
    assert fixed.document.data == config
    (error,) = (one for one in fixed.report.findings if one.severity == "error")
    assert (error.path, error.fix) == (("fp16", name), ())
    assert error.hint is not None
    assert "not fixed: the fix would cause another error: bf16 and fp16 are both enabled" in error.hint
    config["bf16"] = {"enabled": False}
    fixed = fix_document(parse_json(json.dumps(config), lenient=True), check_document)
    assert fixed.document.data["fp16"] == {"enabled": True}


def test_the_change_can_be_shown() -> None:
    before = parse_json('{\n  "a": 1,\n  "b": 2\n}', "x.json")
    after = parse_json('{\n  "a": 1\n}', "x.json")
    assert unified_diff(before, after) == (
        '--- a/x.json\n+++ b/x.json\n@@ -1,4 +1,3 @@\n {\n-  "a": 1,\n-  "b": 2\n+  "a": 1\n }\n'
        "\\ No newline at end of file\n"
    )
    assert unified_diff(before, before) == ""


def check(text: str) -> Report:
    return check_document(parse_json(text, lenient=True))


@cache
def fixed(text: str) -> Fixed:
    return fix_document(parse_json(text, lenient=True), lambda document: check_document(document))


def test_a_text_that_is_fixed_in_part_says_so() -> None:
    for comment, told in (("# of all", "in part, the rest is for you"), ("", None)):
        done = fixed(f'{{"train_batch_size": 8, {comment}\n}}').done
        assert [finding.hint for finding in done if finding.rule == "not-plain-json"] == [told]


@pytest.mark.parametrize("text", FAULTS.values(), ids=FAULTS)
def test_fixing_twice_equals_fixing_once_and_leaves_no_fix(text: str) -> None:
    once = fixed(text)
    assert once.document.text is not None
    again = fixed.__wrapped__(once.document.text)
    assert again.done == ()
    assert again.document.text == once.document.text
    assert [finding for finding in once.report.findings if finding.fix] == []
    # What is left says what a person must decide.
    assert all(finding.hint for finding in once.report.findings)


def test_many_of_the_faults_are_fixed_for_good() -> None:
    faulty = [text for text in FAULTS.values() if not check(text).ok]
    assert sum(fixed(text).report.ok for text in faulty) >= 40


def test_what_is_switched_off_is_not_fixed() -> None:
    data = {"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 1, "_zerokit": {"disable": ["unknown-key"]}}
    assert fixed(json.dumps(data)).done == ()


def test_only_what_the_check_reports_is_fixed() -> None:
    document = parse_json('{"train_micro_batch_size_per_gpu": "1", "gradient_cliping": 1}')

    def unknown_keys(document: Document) -> Report:
        report = check_document(document)
        return replace(report, findings=tuple(f for f in report.findings if f.rule == "unknown-key"))

    assert fix_document(document, unknown_keys).document.text == (
        '{"train_micro_batch_size_per_gpu": "1", "gradient_clipping": 1}'
    )


@pytest.mark.parametrize("rule", ["lamb-static-loss-scale", "one-cycle-momentum", "nvme-optimizer-buffers"])
def test_no_value_of_a_person_gives_way_to_another(rule: str) -> None:
    example = all_rules()[rule]
    assert isinstance(example.bad, dict)
    found = [one for one in check_config(example.bad, Run.of(**example.facts)).findings if one.rule == rule]
    assert found
    assert all(finding.fix == () for finding in found)


def test_no_value_under_an_old_name_gives_way_to_another() -> None:
    old, new = (f"stage3_gather_{bits}_weights_on_model_save" for bits in ("fp16", "16bit"))
    data = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, old: False}}
    run = Run(target="trainer")
    document = fix_document(parse_json(json.dumps(data)), lambda it: check_document(it, run)).document
    assert document.data["zero_optimization"] == {"stage": 3, new: False}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"gradient_cliping": 0.5, "gradient_clippng": 1.0}, ["gradient_cliping", "gradient_clippng"]),
        (
            {
                "zero_optimization": {"stage": 2, "gradient_clipping": 0.3},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "max_grad_norm": 0.7}},
            },
            ["zero_optimization.gradient_clipping", "optimizer.params.max_grad_norm"],
        ),
        (
            {
                "zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True},
                "stage3_gather_16bit_weights_on_model_save": False,
            },
            ["stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"],
        ),
        ({"zero_optimisation": {"stage": 3}, "zero_optimizaton": {"stage": 2}}, None),
        (
            {"zero_optimization": {"stage": 3, "overlap_com": True, "overlp_comm": False}},
            ["overlap_com", "overlp_comm"],
        ),
    ],
)
def test_of_values_that_contradict_each_other_none_is_chosen(config: dict[str, Any], names: list[str] | None) -> None:
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, **config})
    fixed = fix_document(parse_json(text), check_document)
    assert (fixed.document.text, fixed.done) == (text, ())
    if names is None:
        names = list(config)
        assert all(any(f"'{name}'" in f"{one.message} {one.hint}" for one in fixed.report.findings) for name in names)
    else:
        messages = [one.message for one in fixed.report.findings if "it contradicts" in one.message]
        assert len(messages) == 2
        assert [name.rsplit(".")[-1] in message for name, message in zip(names, messages, strict=True)] == [True, True]


def test_values_that_agree_are_moved() -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 0.5, "gradient_clippng": 0.5}'
    assert fix_document(parse_json(text), check_document).document.data["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        ({"cpu_offload": True}, {"offload_optimizer": {"device": "cpu", "pin_memory": True}}, True),
        ({"cpu_offload": True}, {"offload_optimizer": {"device": "none"}}, False),
        ({"cpu_offload": True}, {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}, False),
        ({"cpu_offload": True}, {"offload_optimizer": None}, False),
        ({"cpu_offload": False}, {"offload_optimizer": {"device": "none"}}, True),
        ({"cpu_offload": False}, {"offload_optimizer": {"device": "cpu"}}, False),
        ({"cpu_offload": None}, {"offload_optimizer": {"device": "cpu"}}, True),
        ({"cpu_offload_param": True}, {"offload_param": {"device": "none"}}, False),
        (
            {"stage3_gather_fp16_weights_on_model_save": True},
            {"stage3_gather_16bit_weights_on_model_save": True},
            True,
        ),
        (
            {"stage3_gather_fp16_weights_on_model_save": True},
            {"stage3_gather_16bit_weights_on_model_save": False},
            False,
        ),
    ],
)
def test_a_deprecated_key_goes_where_the_new_one_means_the_same(
    old: dict[str, Any], new: dict[str, Any], agree: bool
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, **old, **new}}
    fixed = fix_document(parse_json(json.dumps(config)), check_document)
    assert fixed.document.data["zero_optimization"] == {"stage": 3, **({} if agree else old), **new}
    messages = [one.message for one in fixed.report.findings if one.rule == "old-and-new-key"]
    assert all(f"'{name}'" in message for message in messages for name in (*old, *new))
    assert len(messages) == (not agree)

import json
from typing import Any

import pytest

from zerokit.choices import Target
from zerokit.documents import dotted, parse_json
from zerokit.findings import Finding
from zerokit.lint import check_document
from zerokit.lint.fix import fix_document
from zerokit.lint.outputs import CheckedFile, to_data
from zerokit.resolving.run import Run

RULE = "not-plain-json"


def found(text: str, target: Target | None = None) -> list[Finding]:
    report = check_document(parse_json(text, lenient=True), Run.of(target=target))
    return [finding for finding in report.findings if finding.rule == RULE]


@pytest.mark.parametrize(
    ("target", "severity"),
    [(None, "warning"), ("deepspeed", "warning"), ("trainer", "error"), ("accelerate", "error")],
)
def test_who_reads_the_file_decides_how_bad_it_is(target: Target | None, severity: str) -> None:
    (finding,) = found('{\n"train_batch_size": 1, // of all\n}', target)
    assert finding.severity == severity
    assert "comments" in finding.message
    assert "DeepSpeed reads" in finding.message


def test_all_departures_are_one_finding_at_the_first_of_them() -> None:
    text = '{\n"steps_per_print": 1,\n\'train_batch_size\': 8,\n"wall_clock_breakdown": false, # a\n}'
    (finding,) = found(text)
    assert (finding.line, finding.column) == (3, 1)
    for word in ("single quotes", "comments", "comma after the last"):
        assert word in finding.message
    assert finding.hint is not None
    assert "2 more places" in finding.hint


def test_plain_json_is_not_spoken_of() -> None:
    assert found('{"train_batch_size": 8}', "trainer") == []


@pytest.mark.parametrize(
    ("value", "hint", "rewritten"),
    [("True,", "Write true", "true,"), ("False,", "Write false", "false,"), ("True, // on", "Write true", None)],
)
def test_a_value_without_quotes_is_an_error_where_a_text_is_no_answer(
    value: str, hint: str, rewritten: str | None
) -> None:
    text = f'{{\n"train_batch_size": 8,\n"fp16": {{"enabled": {value}\n"loss_scale": 0}}}}'
    (finding,) = found(text)
    assert (finding.severity, finding.path, finding.line) == ("error", ("fp16", "enabled"), 3)
    assert "DeepSpeed reads it as text" in finding.message
    assert hint in (finding.hint or "")
    # One mistake, one finding: no second one that the text is no true or false.
    report = check_document(parse_json(text, lenient=True))
    assert [other for other in report.findings if other.path == ("fp16", "enabled")] == [finding]
    fixed = fix_document(parse_json(text, lenient=True), lambda document: check_document(document))
    expected = text.replace(value, rewritten) if rewritten else text
    assert fixed.document.text == expected


def test_placeholders_are_one_finding_that_has_all_their_places() -> None:
    text = """{
"_comment": "as ${USER} said",
"train_batch_size": CONFIG_BATCH,
"steps_per_print": "LOG_INTERVAL",
"fp16": {"enabled": ${FP16}
},
"communication_data_type": "FP8",
"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "$SCRATCH/{{ job }}"}},
"elasticity": {"enabled": false}
}"""
    document = parse_json(text, lenient=True)
    report = check_document(document)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    template, bad, removed = errors
    assert (template.rule, template.line, bad.rule, removed.rule) == ("template", 3, "bad-value", "removed-key")
    assert template.message.startswith("a template: 4 placeholders such as 'CONFIG_BATCH'")
    places = ["train_batch_size", "steps_per_print", "fp16.enabled"]
    places.append("zero_optimization.offload_param.nvme_path")
    assert [dotted(path) for path in (template.path, *template.also)] == places
    assert [finding for finding in report.findings if finding.rule == RULE] == []
    (data,) = [one for one in to_data([CheckedFile("a", report)])["files"][0]["findings"] if "paths" in one]
    assert data["paths"] == places
    fixed = fix_document(document, check_document).document.text or ""
    assert all(word in fixed for word in ("CONFIG_BATCH,", '"LOG_INTERVAL"', "${FP16}\n", "$SCRATCH/{{ job }}"))


def test_a_text_without_quotes_where_a_text_is_right_is_only_no_json() -> None:
    (finding,) = found('{"train_batch_size": 8, "communication_data_type": fp32\n}')
    assert finding.path == ()
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('{"train_batch_size": 8,}', {"train_batch_size": 8}),
        ("{train_batch_size: 8}", {"train_batch_size": 8}),
        ("{'train_batch_size': 8}", {"train_batch_size": 8}),
        ('\ufeff{"train_batch_size": 8}', {"train_batch_size": 8}),
        (
            '{\n"train_batch_size": 8\n"zero_optimization": {"stage": 1}}',
            {"train_batch_size": 8, "zero_optimization": {"stage": 1}},
        ),
        ("{'_note': 'it\\'s \"it\"', 'train_batch_size': 8,}", {"_note": 'it\'s "it"', "train_batch_size": 8}),
    ],
)
def test_fix_makes_it_plain_json(text: str, data: Any) -> None:
    fixed = fix_document(parse_json(text, lenient=True), lambda document: check_document(document))
    assert fixed.document.text is not None
    assert list(json.loads(fixed.document.text).items()) == list(data.items())
    assert found(fixed.document.text, "trainer") == []


def test_fix_keeps_comments_for_a_person_to_move() -> None:
    text = '{\n  // of all GPUs\n  "train_batch_size": 8,\n}\n'
    fixed = fix_document(parse_json(text, lenient=True), lambda document: check_document(document))
    assert fixed.document.text == '{\n  // of all GPUs\n  "train_batch_size": 8\n}\n'
    assert [finding.rule for finding in fixed.report.findings if finding.rule == RULE] == [RULE]

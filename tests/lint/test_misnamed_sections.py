"""What stands in a section whose name is wrong is judged with it: all mistakes at once."""

from __future__ import annotations

import json

import pytest

from zerokit.documents import Document, dotted, parse_json
from zerokit.lint.fix import fix_document
from zerokit.lint.run import Report, check_document
from zerokit.resolving.run import Run

FAULTY = """{
  "train_batch_size": 8,
  "zero_optimisation": {
    "stage": "3",
    "overlap_com": true,
    "offload_optimiser": {"device": "gpu", "pin_memry": true}
  },
  "Scheduler": {"type": "WarmupLR", "parms": {}},
  "fp16": {"enabled": true}, "bf16": {"enabled": true}
}"""


def rows(report: Report) -> list[tuple[str, str, int | None]]:
    return [(one.rule, dotted(one.path), one.line) for one in report.findings if one.severity != "info"]


def test_a_section_that_is_misspelled_is_looked_into() -> None:
    report = check_document(parse_json(FAULTY))
    assert {
        ("unknown-key", "zero_optimisation", 3),
        ("wrong-type", "zero_optimisation.stage", 4),
        ("unknown-key", "zero_optimisation.overlap_com", 5),
        ("unknown-key", "zero_optimisation.offload_optimiser", 6),
        ("bad-value", "zero_optimisation.offload_optimiser.device", 6),
        ("unknown-key", "zero_optimisation.offload_optimiser.pin_memry", 6),
        ("unknown-key", "Scheduler", 8),
        ("unknown-key", "Scheduler.parms", 8),
    } <= set(rows(report))


def test_what_its_fix_leaves_was_reported_before() -> None:
    document = parse_json(FAULTY)
    before = check_document(document)
    fixed = fix_document(document, check_document)
    said = {(one.rule, one.message) for one in before.findings}
    done = {(one.rule, one.message) for one in fixed.done}
    assert done == {(one.rule, one.message) for one in before.findings if one.fix}
    assert {(one.rule, one.message) for one in fixed.report.findings} <= said
    assert fixed.document.data["zero_optimization"] == {
        "stage": 3,
        "overlap_comm": True,
        "offload_optimizer": {"device": "gpu", "pin_memory": True},
    }


def test_a_fix_inside_suits_the_file_as_it_is() -> None:
    document = parse_json(FAULTY)
    report = check_document(document)
    only = Report(tuple(one for one in report.findings if one.path[1:] == ("stage",)), {})
    fixed = fix_document(document, lambda now: only if now is document else Report((), {}))
    assert fixed.document.data["zero_optimisation"]["stage"] == 3


@pytest.mark.parametrize(
    "entry",
    [{"rule": "wrong-type", "path": "zero_optimisation.stage"}, {"rule": "unknown-key", "path": "zero_optimisation"}],
)
def test_a_rule_is_switched_off_by_the_file_s_own_names(entry: dict[str, str]) -> None:
    data = {
        "train_batch_size": 8,
        "zero_optimisation": {"stage": "3", "overlap_com": True},
        "_zerokit": {"disable": [entry]},
    }
    report = check_document(parse_json(json.dumps(data)))
    assert all(one.rule != "unused-disable" for one in report.findings)
    assert {(one.rule, dotted(one.path)) for one in report.suppressed} >= {(entry["rule"], entry["path"])}


def test_the_trainer_has_its_own_say_there() -> None:
    text = '{"train_batch_size": "auto", "optimiser": {"type": "AdamW", "parms": {"lr": 1e-5}}}'

    def check(document: Document) -> Report:
        return check_document(document, Run(target="trainer"))

    before = check(parse_json(text))
    after = fix_document(parse_json(text), check).report
    for report, said in ((before, False), (after, True)):
        (left,) = [one for one in report.findings if one.path[-1:] == ("parms",)]
        assert (left.fix, "not fixed: " in str(left.hint)) == ((), said)


def test_a_hint_ends_before_the_reason_begins() -> None:
    text = '{"train_batch_size": "auto", "zero_optimization": {"stage": 2, "gradient_clipping": 1.0}}'
    fixed = fix_document(parse_json(text), lambda document: check_document(document, Run(target="trainer")))
    (hint,) = (str(one.hint) for one in fixed.report.findings if one.path[-1:] == ("gradient_clipping",))
    assert hint.startswith("It belongs at the top of the file. not fixed: ")


def test_two_names_for_one_section_are_not_both_taken_for_it() -> None:
    text = '{"zero_optimisation": {"stage": 3}, "zero_optimizaton": {"stag": 2}}'
    report = check_document(parse_json(text))
    assert ("unknown-key", "zero_optimizaton", 1) in rows(report)
    (hint,) = (str(one.hint) for one in report.findings if one.path == ("zero_optimizaton",))
    assert hint.startswith("Keep one of the two: 'zero_optimisation', line 1, means the same")


def test_two_names_for_one_section_that_contradict_each_other_are_reported_alike() -> None:
    text = '{"zero_optimisation": {"stage": 3},\n"zero_optimizaton": {"stage": 2}}'
    report = check_document(parse_json(text))
    said = {one.path[0]: (one.message, one.hint, one.fix) for one in report.findings if one.rule == "unknown-key"}
    for name, other, line in (
        ("zero_optimisation", "zero_optimizaton", 2),
        ("zero_optimizaton", "zero_optimisation", 1),
    ):
        hint = f"Keep one of the two: '{other}', line {line}, means the same"
        assert said[name] == (f"unknown key '{name}'", hint, ())

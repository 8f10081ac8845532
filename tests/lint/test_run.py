import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zerokit.config import load_ds_config
from zerokit.documents import Document, parse_json
from zerokit.findings import Move, Remove, SetValue, Severity
from zerokit.hardware.cluster import Cluster
from zerokit.lint import RULES, Report, Subject, check_config, check_document
from zerokit.lint.rule import TOPICS, Check, Hit, Need, Rule, add, rule
from zerokit.lint.run import all_rules, check_launch_document
from zerokit.lint.table import register_table
from zerokit.resolving.run import Run

ONE = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0}


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> dict[str, Rule]:
    """An empty list of rules, in place of all."""
    all_rules()
    listed: dict[str, Rule] = {}
    for module in ("rule", "run", "disabling", "plain_json"):
        monkeypatch.setattr(f"zerokit.lint.{module}.RULES", listed)
    return listed


def listed(id: str, severity: Severity = "error", needs: tuple[Need, ...] = ()) -> Callable[[Check], Check]:
    """Put a function on the list of rules."""

    def register(check: Check) -> Check:
        add(Rule(id, "zero", severity, "title", "text", {}, {}, needs=needs, check=check))
        return check

    return register


def test_a_rule_is_a_row_and_a_function(
    only: dict[str, Rule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks: dict[str, Check] = {}
    monkeypatch.setattr("zerokit.lint.rule.CHECKS", checks)
    monkeypatch.setattr("zerokit.lint.table.CHECKS", checks)
    monkeypatch.setattr("zerokit.lint.table.LAUNCH_CHECKS", {})
    monkeypatch.setattr("zerokit.lint.table.RULES", only)

    @rule("odd")
    def odd(subject: Subject) -> Iterator[Hit]:
        """Something odd."""
        yield from ()

    row = {
        "id": "odd",
        "severity": "info",
        "text": ["What that does.", "And why."],
        "bad": {"a": 1},
        "good": {},
        "given": {"num_gpus": 2},
        "needs": ["num_gpus"],
    }
    for topic in TOPICS:
        (tmp_path / f"{topic}.json").write_text(json.dumps([row] if topic == "zero" else []))
    register_table(tmp_path)
    text = "What that does.\n\nAnd why."
    given = {"num_gpus": 2}
    assert only == {
        "odd": Rule("odd", "zero", "info", "Something odd", text, {"a": 1}, {}, given, ("num_gpus",), check=odd)
    }
    with pytest.raises(ValueError, match="two rules have the id 'odd'"):
        register_table(tmp_path)
    only.clear()
    (tmp_path / "zero.json").write_text("[]")
    with pytest.raises(ValueError, match="no row describes the rule 'odd'"):
        register_table(tmp_path)


def test_a_hit_becomes_a_finding_where_the_file_has_it(only: dict[str, Rule]) -> None:
    @listed("renamed", severity="warning")
    def renamed(subject: Subject) -> Iterator[Hit]:
        live = ("zero_optimization", "stage3_max_live_parameters")
        edits = (SetValue(live, 5), Move(live, (*live[:-1], "new")), Remove(("bf16", "enabled")))
        yield Hit(live, "message", "hint", edits)
        yield Hit(("zero_optimization", "absent"), "elsewhere", "hint", severity="info")
        yield Hit((), "all of it", "hint")

    text = '\n{"bfloat16": {"enabled": true},\n "zero_optimization": {\n  "max_live_parameters": 5}}'
    findings = [found for found in check_document(parse_json(text)).findings if found.rule == "renamed"]
    assert [(f.message, f.severity, f.line, f.column) for f in findings] == [
        ("all of it", "warning", 2, 1),
        ("elsewhere", "info", 3, 2),
        ("message", "warning", 4, 3),
    ]
    live = ("zero_optimization", "max_live_parameters")
    assert findings[2].path == live
    assert findings[2].fix == (
        SetValue(live, 5),
        Move(live, ("zero_optimization", "new")),
        Remove(("bfloat16", "enabled")),
    )


def test_rules_see_the_valid_part_with_what_is_known_of_the_run(only: dict[str, Rule]) -> None:
    seen: list[Subject] = []

    @listed("looks")
    def looks(subject: Subject) -> Iterator[Hit]:
        seen.append(subject)
        yield from ()

    data = {"zero_optimization": {"stage": 3, "sub_group_sise": 1}, "steps_per_print": "x"}
    report = check_document(Document(data, "ds"), Run.of(target="trainer", num_gpus=4))
    (subject,) = seen
    assert subject.stage == 3
    assert subject.written == {"zero_optimization": {"stage": 3}}
    assert (subject.run.target, subject.run.cluster) == ("trainer", Cluster(4))
    assert subject.is_uncertain("zero_optimization", "sub_group_size")
    assert subject.is_uncertain("steps_per_print")
    assert subject.is_absent("zero_optimization", "overlap_comm")
    assert subject.is_absent("train_batch_size")
    assert len(report.findings) == 2


def test_rules_without_what_they_need_are_listed_and_do_not_run(only: dict[str, Rule]) -> None:
    @listed("needy", needs=("num_gpus", "gpu_memory"))
    def needy(subject: Subject) -> Iterator[Hit]:
        yield Hit((), f"{subject.cluster.num_gpus} GPUs of {subject.cluster.gpu_memory_bytes} bytes", "hint")

    assert check_config({}).not_run == {"needy": ("num_gpus", "gpu_memory")}
    assert check_config({}, Run.of(num_gpus=2)).not_run == {"needy": ("gpu_memory",)}
    report = check_config({}, Run.of(num_gpus=2, gpu_memory_bytes=2**30))
    assert report.not_run == {}
    assert [finding.message for finding in report.findings] == ["2 GPUs of 1073741824 bytes"]


def test_a_rule_that_fails_is_zerokits_bug(only: dict[str, Rule]) -> None:
    @listed("broken")
    def broken(subject: Subject) -> Iterator[Hit]:
        yield Hit((), "before", "hint")
        raise ZeroDivisionError

    @listed("sound")
    def sound(subject: Subject) -> Iterator[Hit]:
        yield Hit((), "after", "hint")

    with pytest.raises(ZeroDivisionError):
        check_config({})
    told: list[tuple[str, type]] = []
    report = check_config({}, on_bug=lambda rule, error: told.append((rule.id, type(error))))
    assert told == [("broken", ZeroDivisionError)]
    assert [finding.message for finding in report.findings] == ["after"]


def test_rules_of_launch_files_see_their_data_and_no_others(only: dict[str, Rule]) -> None:
    def launch(data: Any) -> Iterator[Hit]:
        yield Hit(("deepspeed_config",), f"stage {data.data['deepspeed_config']['zero_stage']}", "hint")

    add(Rule("launch", "accelerate", "error", "title", "text", {}, {}, check_launch=launch))

    @listed("config")
    def config(subject: Subject) -> Iterator[Hit]:
        yield Hit((), "config", "hint")

    document = parse_json('{"deepspeed_config": {"zero_stage": 3}}')
    assert [f.message for f in check_launch_document(document).findings] == ["stage 3"]
    assert [f.message for f in check_config({}).findings] == ["config"]


def test_all_findings_come_at_once_in_the_order_of_the_lines() -> None:
    text = (
        '{\n"train_micro_batch_size_per_gpu": 1,\n"steps_per_print": "10",\n"zero_optimization": {\n'
        '"stage": 2,\n"max_live_parameters": 5,\n"offload_param": {"device": "cpu"}},\n"gradient_cliping": 1}'
    )
    report = check_document(parse_json(text))
    lines = [finding.line for finding in report.findings if finding.severity != "info"]
    assert lines == sorted(lines, key=lambda line: line or 0)
    found = {(finding.rule, finding.line) for finding in report.findings}
    assert {("stage3-key", 6), ("offload-param-stage", 7), ("unknown-key", 8)} <= found
    assert any(line == 3 for _, line in found)
    assert not report.ok


@pytest.mark.parametrize(
    "data",
    [
        {**ONE, "zero_optimization": {"stag": 3, "offload_param": {"device": "cpu"}}},
        {**ONE, "zero_optimization": {"stage": "three", "offload_param": {"device": "cpu"}}},
        {**ONE, "zero_optimization": {"stage": [3], "stage3_max_live_parameters": 5}},
        {**ONE, "optimizer": {"type": 3, "params": {"lr": 1e-3}}},
        {"train_micro_batchsize_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0},
        {**ONE, "bf16": "yes please", "fp16": {"enabled": True}},
        [],
        "text",
        None,
        {**ONE, 3: 1},
    ],
)
def test_one_mistake_gives_one_error(data: Any) -> None:
    report = check_document(Document(data, "ds.json"))
    assert len([finding for finding in report.findings if finding.severity == "error"]) == 1


def test_a_model_is_checked_like_its_dump() -> None:
    data = {**ONE, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
    report = check_config(load_ds_config(data))
    assert report.findings == check_config(data).findings
    assert {finding.line for finding in report.findings} == {None}
    assert not report.ok


def test_only_errors_make_a_report_bad() -> None:
    assert Report((), {}).ok
    warning = check_config({**ONE, "zero_optimization": {"stage": 2, "stage3_max_live_parameters": 5}})
    assert "warning" in {finding.severity for finding in warning.findings}
    assert warning.ok


def test_every_finding_is_of_a_rule_that_is_documented() -> None:
    text = """{"bf16": true, "prescale_gradients": "false", "fp16": {"enabled": "x"}, "elasticity": {},
        "zero_optimization": {"stage": "3", "reduce_bucket_size": -1, "overlap_com": 1, "aio": {}},
        "optimizer": {"params": {}}}"""
    found = {finding.rule for finding in check_document(parse_json(text)).findings}
    assert found <= RULES.keys()
    assert {"unknown-key", "misplaced-key", "removed-key", "missing-key"} <= found
    assert {"wrong-type", "string-switch", "out-of-range"} <= found


@pytest.mark.parametrize(
    ("config", "rule", "path"),
    [
        ({"fp16": {"auto_cast": True}}, "precision-off", ("fp16",)),
        ({"bf16": {"check_grad_overflow": False}}, "precision-off", ("bf16",)),
        ({"hybrid_engine": {"pin_parameters": False}}, "hybrid-engine-off", ("hybrid_engine",)),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"nvme_path": "/nvme", "pin_memory": True}}},
            "offload-empty",
            ("zero_optimization", "offload_optimizer"),
        ),
    ],
)
def test_of_a_section_that_does_nothing_no_key_is_to_be_removed(
    config: dict[str, Any], rule: str, path: tuple[str, ...]
) -> None:
    report = check_config({**ONE, "zero_optimization": {"stage": 0}, **config})
    inside = [finding for finding in report.findings if finding.path[: len(path)] == path]
    assert [(finding.rule, finding.path) for finding in inside] == [(rule, path)]
    assert "Add" in (inside[0].hint or "")


@pytest.mark.parametrize("config", [{"bfloat16": {"enabled": "auto"}}, {"zero_optimization": False}])
def test_two_rules_that_fix_a_key_in_one_way_are_one_line(config: dict[str, Any]) -> None:
    (path,) = ((key,) for key in config)
    report = check_config({**ONE, **config}, Run.of(target="trainer"))
    hints = [finding.hint for finding in report.findings if finding.path == path]
    assert len(hints) == len(set(hints)) == 1

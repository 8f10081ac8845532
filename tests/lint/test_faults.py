"""Faults that DeepSpeed ignores or finds at run time are found at their keys; what is sound has no error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.each import each
from tests.json_data import load_json
from zerokit.documents import Document, KeyPath, dotted, parse_json
from zerokit.errors import DocumentError
from zerokit.findings import Finding
from zerokit.lint import Report, check_document
from zerokit.lint.fix import fix_document
from zerokit.lint.recognition import refuse_other_files
from zerokit.resolving.run import Run

ROWS = load_json("lint/test_faults.json")

Case = dict[str, Any]

CASES: list[Case] = load_json("data/config_faults.json")
"""Configs, with what DeepSpeed 0.19.8 did with each."""

SOUND = "accepted, equivalent or legal"

BASELINE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
"""The config that most cases were made from: of it stage, bf16 and optimizer vary without being the fault."""

NOT_IN_THE_FILE = {
    "F05": "the file does not exist",
    "C09": "the folder of NVMe is looked for on the machine that trains",
    "H04": "a kernel that the CPU lacks, on which it was tried",
    "O30": "the package mup, which the optimizer needs, is not installed",
    "R87": "a vocabulary that is slow on tensor cores, for which there is no rule",
}
"""Cases whose fault the file does not show, or that need no rule."""

PLACES: Mapping[str, str] = ROWS["places"]
"""Where the fault is, if the difference from the baseline does not tell; "" is the whole of the file."""

INFO = {
    "O24": "the optimizer is the script's, which the file does not show",
    "O25": "the script may give an optimizer",
    "O26": "the script may give an optimizer",
    "R91": "all parameters may be wanted on the device",
    "S08": "one step of warmup becomes two",
}
"""Cases of which the file by itself only gives a hint."""

NEEDS_TARGET = {
    "B15": "the Trainer and accelerate fill the key",
    "B16": "the Trainer and accelerate fill the keys",
    "O21": "the Trainer and accelerate may bring the optimizer that offload wants",
}
"""Cases that are no fault for another target than DeepSpeed itself, so that they need `--target`."""


def text_of(case: Case) -> str:
    config = case["config"]
    return config if isinstance(config, str) else json.dumps(config, indent=2)


def check(case: Case, *, target: str | None = "deepspeed") -> Report:
    """As `zerokit check` does, told the number of processes with which DeepSpeed was tried."""
    world = case.get("opts", {}).get("world", 1)
    return check_document(parse_json(text_of(case), lenient=True), Run.of(target=target, num_gpus=world))


def differences(config: Mapping[str, Any], base: Mapping[str, Any], path: KeyPath = ()) -> Iterator[KeyPath]:
    """The topmost keys that are new or have another value; a plain stage is none."""
    for key, value in config.items():
        here = (*path, key)
        if key not in base:
            yield here
        elif isinstance(value, Mapping) and isinstance(base[key], Mapping):
            yield from differences(value, base[key], here)
        elif value != base[key] and not (here == ("zero_optimization", "stage") and is_stage(value)):
            yield here


def is_stage(value: Any) -> bool:
    return type(value) is int and value in range(4)


def leaves(config: Any, path: KeyPath) -> list[KeyPath]:
    """The keys with plain values below `path`, or itself."""
    for key in path:
        config = config[key]
    if not isinstance(config, Mapping) or not config:
        return [path]
    return [leaf for key in config for leaf in _below(config[key], (*path, key))]


def _below(value: Any, path: KeyPath) -> list[KeyPath]:
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [leaf for key in value for leaf in _below(value[key], (*path, key))]


def is_at_the_fault(finding: Finding, case: Case) -> bool:
    """Whether a finding is at the one key in which the case differs from the baseline, or within it."""
    place = PLACES.get(case["id"])
    if place is not None:
        return place in [dotted(path) for path in (finding.path, *finding.also)]
    (top,) = differences(case["config"], BASELINE)
    (leaf,) = leaves(case["config"], top)
    path = finding.path
    on_the_way = path[: len(top)] == top and leaf[: len(path)] == path
    return on_the_way or path[: len(leaf)] == leaf


def has_one_difference(case: Case) -> bool:
    tops = list(differences(case["config"], BASELINE))
    return len(tops) == 1 and len(leaves(case["config"], tops[0])) == 1


def line_of(key: str, text: str) -> int:
    """The line on which a key stands, as its only one of that name."""
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if f'"{key}":' in line]
    return line


FAULTS = [case for case in CASES if case["verdict"] != SOUND and case["id"] not in NOT_IN_THE_FILE]
OF_CONFIGS = [case for case in FAULTS if isinstance(case["config"], dict)]
OF_TEXTS = {case["id"]: case["config"] for case in FAULTS if isinstance(case["config"], str)}

each_case = each(OF_CONFIGS, by=lambda case: case["id"][0], named=lambda case: case["id"])


@each_case
@pytest.mark.parametrize("target", ["deepspeed", None])
def test_the_fault_is_found_at_its_key(case: Case, target: str | None) -> None:
    assert case["id"] in PLACES or has_one_difference(case), "say in PLACES where the fault is"
    findings = [finding for finding in check(case, target=target).findings if is_at_the_fault(finding, case)]
    if target is None and case["id"] in NEEDS_TARGET:
        assert not findings
        return
    if case["id"] not in INFO:
        findings = [finding for finding in findings if finding.severity != "info"]
    assert findings
    assert all(finding.hint for finding in findings)


@each_case
def test_findings_stand_on_the_lines_of_their_keys(case: Case) -> None:
    text = text_of(case)
    document = parse_json(text, lenient=True)
    for finding in check(case).findings:
        assert finding.line is not None
        assert finding.column is not None
        key = finding.path[-1] if finding.path else None
        if isinstance(key, str) and finding.path in document.spans and text.count(f'"{key}":') == 1:
            assert finding.line == line_of(key, text)
            assert text.splitlines()[finding.line - 1][finding.column - 1 :].startswith(f'"{key}"')


def test_texts_that_deepspeed_refuses_are_refused_with_the_place() -> None:
    assert set(OF_TEXTS) == {"F01", "F06", "F07"}
    with pytest.raises(DocumentError, match=r"x\.json:1:107: the key 'stage' appears twice \(first on line 1, c"):
        parse_json(OF_TEXTS["F01"], "x.json", lenient=True)
    with pytest.raises(DocumentError, match=r"x\.json:1:1: is empty"):
        parse_json(OF_TEXTS["F06"], "x.json", lenient=True)
    with pytest.raises(DocumentError, match="is a list, not a ds_config"):
        refuse_other_files(parse_json(OF_TEXTS["F07"], "x.json", lenient=True))


@each(
    [case for case in CASES if case["verdict"] == SOUND], by=lambda case: case["id"][0], named=lambda case: case["id"]
)
@pytest.mark.parametrize("target", ["deepspeed", None])
def test_what_deepspeed_takes_as_it_is_has_no_error(case: Case, target: str | None) -> None:
    assert [finding for finding in check(case, target=target).findings if finding.severity == "error"] == []


@pytest.mark.slow
@each_case
@pytest.mark.parametrize("target", ["deepspeed", "trainer", "accelerate"])
def test_a_person_decides_what_fixes_leave(case: Case, target: str) -> None:
    def checked(document: Document) -> Report:
        return check_document(document, Run.of(target=target, num_gpus=case.get("opts", {}).get("world", 1)))

    once = fix_document(parse_json(text_of(case), lenient=True), checked)
    again = fix_document(once.document, checked)
    assert again.document.text == once.document.text
    assert [finding for finding in once.report.findings if finding.fix or not finding.hint] == []


def test_the_tables_name_cases_that_there_are() -> None:
    ids = {case["id"] for case in CASES}
    for table in (PLACES, NOT_IN_THE_FILE, INFO, NEEDS_TARGET):
        assert set(table) <= ids
    derived = {case["id"] for case in OF_CONFIGS} - set(PLACES)
    assert len(derived) >= 100

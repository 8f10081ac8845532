"""Published ds_config files, if a folder of them is there, and the program that surveys them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import REPOSITORY
from tests.validation.lint.wild import (
    ERRORS_PAGE,
    WRITTEN,
    Survey,
    error_blocks,
    error_tables,
    figures,
    survey,
    to_json,
    with_blocks,
)
from tests.validation.lint.wild_reasons import reason_of, why_it_hurts
from zerokit.findings import Finding

FOLDER = Path(os.environ.get("ZEROKIT_WILD_CONFIGS", REPOSITORY.parent / "shared" / "data" / "wild_configs"))
needs_folder = pytest.mark.skipif(
    not (FOLDER / "index.json").is_file(),
    reason="needs a folder of published ds_config files, named by ZEROKIT_WILD_CONFIGS",
)


@pytest.fixture(scope="module")
def surveyed() -> Survey:
    return survey(FOLDER)


@needs_folder
@pytest.mark.slow
def test_no_file_makes_it_fail_and_all_load_again_and_mending_comes_to_rest(surveyed: Survey) -> None:
    assert surveyed.failures == []
    assert len(surveyed.findings) + len(surveyed.unreadable) == len(surveyed.entries) > 300


@needs_folder
@pytest.mark.slow
def test_the_errors_are_those_that_were_checked_by_hand(surveyed: Survey) -> None:
    recorded = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert figures(surveyed)["errors"] == recorded["errors"]
    for row, finding in surveyed.errors():
        assert reason_of(finding, template=row["kind"] != "ds_config")


@needs_folder
@pytest.mark.slow
def test_the_page_lists_them(surveyed: Survey) -> None:
    page = ERRORS_PAGE.read_text(encoding="utf-8")
    assert with_blocks(page, error_blocks(surveyed)) == page


CLEAN = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
FILES: dict[str, Any] = {
    "deepspeedai/a": {"train_micro_batch_size_per_gpu": 1, "amp": {"enabled": False}},
    "who/b": {**CLEAN, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
    "who/c": CLEAN,
    "who/d": "[1, 2]",
    "who/e": {**CLEAN, "gradient_clipping": "auto"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    index = []
    for number, (repository, content) in enumerate(FILES.items()):
        name = f"{number}.json"
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
        row = {"id": str(number), "file": name, "repo": repository, "path": f"x/{name}", "commit": "abc"}
        copies = [{"repo": "copy/cat"}] if number == 0 else []
        index.append({**row, "kind": "ds_config", "copies": copies})
    (tmp_path / "index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_survey_counts_files_and_findings_by_group(folder: Path) -> None:
    numbers = figures(survey(folder))
    assert (numbers["files"], numbers["repositories"], numbers["repositories_with_copies"]) == (5, 5, 6)
    assert numbers["unreadable"] == {"3": "is a list, not a ds_config"}
    assert numbers["errors"] == [
        ["0", "removed-key", "amp"],
        ["1", "offload-param-stage", "zero_optimization.offload_param"],
    ]
    assert numbers["groups"]["deepspeedai"] == {
        "files": 1,
        "worst_finding": {"error": 1, "warning": 0, "info": 0, "none": 0},
    }
    assert numbers["groups"]["elsewhere"]["files"] == 3
    (row,) = [row for row in numbers["findings"] if row["rule"] == "removed-key"]
    assert row["deepspeedai"] == {"files": 1, "findings": 1}
    assert row["elsewhere"] == {"files": 0, "findings": 0}
    assert numbers["errors_for_target"]["deepspeed"]["unfilled-auto"] == 1
    assert "unfilled-auto" not in numbers["errors_for_target"]["trainer"]


def test_the_figures_are_json_with_a_line_for_each_finding(folder: Path) -> None:
    numbers = figures(survey(folder))
    text = to_json(numbers)
    assert json.loads(text) == numbers
    assert '  ["0", "removed-key", "amp"],\n' in text


def test_errors_are_listed_by_repository_with_the_file_as_it_was(folder: Path) -> None:
    listed = error_tables(survey(folder), pure=True)
    assert listed.index("**deepspeedai/a**") < listed.index("**who/b**")
    assert "| [x/1.json](https://github.com/who/b/blob/abc/x/1.json) | `zero_optimization.offload_param` |" in listed
    assert "**who/c**" not in listed


def test_a_dump_that_loads_as_something_else_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.validation.lint.wild._loads_again", lambda document: False)
    monkeypatch.setattr("tests.validation.lint.wild._comes_to_rest", lambda document, check: False)
    failures = survey(folder).failures
    assert "2: its dump loads as another config" in failures
    assert "2: fixing twice is not fixing once (target trainer)" in failures


def test_a_crash_is_a_failure_and_not_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("tests.validation.lint.wild.check_document", crash)
    assert survey(folder).failures == [f"{number}: RuntimeError: oops" for number in (0, 1, 2, 4)]


def test_an_error_that_nobody_has_checked_has_no_reason() -> None:
    with pytest.raises(LookupError, match=r"nobody has checked .* x \[unknown-key\]"):
        reason_of(Finding(("x",), "x", rule="unknown-key"), template=False)
    assert reason_of(Finding(("x",), "x", rule="unknown-key"), template=True)
    with pytest.raises(LookupError, match="why no-such-rule hurts"):
        why_it_hurts("no-such-rule")


def test_parts_are_written_between_their_marks() -> None:
    page = "a\n<!-- b -->\nold\n<!-- /b -->\nc\n"
    assert with_blocks(page, {"b": "new\\1"}) == "a\n<!-- b -->\nnew\\1\n<!-- /b -->\nc\n"
    with pytest.raises(ValueError, match="no place for d"):
        with_blocks(page, {"d": ""})

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import refused
from tests.reporting.pages import documents, plan

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("kind", ["plan", "estimate", "sweep", "rehearsal", "run"])
def test_a_page_is_written_and_not_overwritten(zerokit: Run, kind: str, tmp_path: Path) -> None:
    file, page = tmp_path / "<i>.json", tmp_path / "report.html"
    file.write_text(json.dumps(documents()[kind]))
    assert zerokit("report", file, "-o", page) == (0, "", f"wrote {page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "--force" in refused(zerokit, "report", file, "-o", page)
    assert "no such file" in refused(zerokit, "report", tmp_path / "none.json", "-o", page)
    assert zerokit("report", file, "-o", page, "--force")[0] == 0


def _with(path: str, value: Any) -> bytes:
    data = plan()
    *parents, last = path.split(".")
    place: Any = data
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "plan.json: is not JSON: EOF"),
        (b"[1]", "plan.json: zerokit makes no page of this file. Name plan.json, run.json, or the JSON of"),
        (b'{"zero_optimization": {}}', "plan.json: zerokit makes no page of this file"),
        (b'{"plans": [], "verdict": "x"}', "plan.json: has no key 'model'"),
        (_with("plans.0.step_seconds", 3), "plan.json (plans[0].step_seconds): "),
        (_with("plans.0.gpu_memory_bytes", -1), "plans[0].gpu_memory_bytes is -1. Make it at least 0"),
        (_with("considered", [1]), "plan.json (considered[0]): "),
        (_with("tokens", float("nan")), "plan.json: is not JSON: "),
        (_with("tokens", 10**30), "plan.json (tokens): "),
        (_with("model", "\ud800"), "plan.json: is not JSON: "),
        (b'{"plans": ' + b"[" * 100_000, "plan.json: is not JSON: recursion limit"),
    ],
)
def test_another_file_is_one_line(zerokit: Run, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    assert words in refused(zerokit, "report", tmp_path / "plan.json", "-o", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_estimate_writes_the_page_too(zerokit: Run, tmp_path: Path) -> None:
    words = ("estimate", "qwen2.5-0.5b", "--num-gpus", "8", "--zero-stage", "1,3", "--seq-len", "512")
    assert zerokit(*words, "--gpu", "h100", "--html", tmp_path / "e.html")[0] == 0
    assert "2 of 2 settings fit" in (tmp_path / "e.html").read_text()
    assert "--force" in refused(zerokit, *words, "--html", tmp_path / "e.html")

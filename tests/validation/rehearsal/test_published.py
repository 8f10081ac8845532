"""The published figures, their table, and the tool that reruns them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import REPOSITORY
from tests.validation.rehearsal import published

ROWS: list[dict[str, Any]] = json.loads(published.WRITTEN.read_text(encoding="utf-8"))
PAGE = (REPOSITORY / "tests" / "validation" / "records" / "rehearsal-accuracy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
def test_the_page_shows_every_row_that_was_tried(row: dict[str, Any]) -> None:
    cells = next(line for line in PAGE.splitlines() if line.startswith(f"| `{row['name']}` ")).split("|")
    assert cells[2].strip() == str(row["gpus"])
    assert cells[3].strip() == f"{row['measured']:g} {row['unit']}"
    rehearsed = row["rehearsed"]
    assert cells[4].strip() == ("" if rehearsed is None else f"{rehearsed:g}")
    assert cells[5].strip() == ("" if rehearsed is None else f"{rehearsed / row['measured'] - 1:+.1%}"[:-1] + " %")


@pytest.mark.parametrize("row", [row for row in ROWS if row["name"].startswith("bf16-master-weight")])
def test_the_scripts_that_say_everything_are_within_a_hundredth(row: dict[str, Any]) -> None:
    assert row["rehearsed"] == pytest.approx(row["measured"], rel=0.01)


def test_a_rows_command_finds_its_files(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    for name in ("train.py", "ds.json"):
        (tmp_path / "repository" / name).write_text("")
    row = {"command": "train.py --model MODEL --deepspeed ds.json --lr 1", "gpus": 4, "options": ["--steps", "0"]}
    run = {"scripts": "repository", "words": {"MODEL": "/models/a"}, "arguments": ["--out", "o"]}
    words = published.command_of(row, run, tmp_path, tmp_path / "r.json")
    script = str(tmp_path / "repository" / "train.py")
    assert words[0] == sys.executable
    assert words[words.index("--steps") : words.index(script)] == ["--steps", "0"]
    assert words[words.index(script) + 1 :] == [
        *("--model", "/models/a", "--deepspeed", str(tmp_path / "repository" / "ds.json"), "--lr", "1"),
        *("--out", "o"),
    ]


def test_a_figure_is_what_the_script_printed_last_or_stands_in_the_report() -> None:
    printed = {"name": "a", "unit": "GiB", "figure": r"peak ([\d.]+) GB"}
    assert published.figure_of(printed, "peak 1.5 GB\npeak 2.5 GB", {}) == 2.5
    with pytest.raises(ValueError, match="has not printed"):
        published.figure_of(printed, "", {})
    reported = {"name": "a", "unit": "GB", "figure": "device.peak_bytes", "times": 2}
    assert published.figure_of(reported, "", {"device": {"peak_bytes": 3 * 10**9}}) == 6.0

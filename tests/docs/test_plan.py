"""The answers of docs/plan.md: each command prints the lines that the page shows.

``python -m tests.docs.test_plan`` puts today's lines in place of those that changed.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import pytest

from tests.cli.conftest import Run, zerokit
from tests.combinations import sample
from tests.docs.outputs import output_of
from tests.docs.test_journeys import PAGES, blocks_of, missing_line

__all__ = ["zerokit"]  # the fixture

PRICES = Path(__file__).parent / "plan/prices.csv"
BLOCKS = blocks_of("../plan")
COMMON = "--prices prices.csv --rehearse 0 --no-input"


def refreshed(shown: str, printed: str) -> str:
    """`shown` with the most similar printed line in place of each line, once; lines with ``...`` stay."""
    lines = [line.rstrip() for line in printed.splitlines()]
    new: list[str] = []
    for line in shown.splitlines():
        if line.strip() and "..." not in line:
            line = get_close_matches(line, lines, 1, 0)[0]
            if line in new:
                continue
        new.append(line)
    return "".join(f"{line}\n" for line in new)


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one question needs again of another is remembered here."""
    return tmp_path_factory.mktemp("cache")


def test_changed_lines_are_refreshed() -> None:
    assert refreshed("Rent 2 for 3 h\n\nPlans\n...\n", "Rent 2 for 4 h\n\nPlans\nWhy not\n") == (
        "Rent 2 for 4 h\n\nPlans\n...\n"
    )
    assert refreshed("2 x H100 3 h\n2 x H200 3 h\n", "2 x H100 4 h\n") == "2 x H100 4 h\n"  # a row is gone


def test_ten_questions_are_answered() -> None:
    assert len(BLOCKS) >= 10
    assert all(lines for _, _, lines in BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code", "lines"), sample(BLOCKS, 6))
def test_an_answer_is_what_the_command_prints(
    zerokit: Run, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, lines: str
) -> None:
    monkeypatch.chdir(PRICES.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
    monkeypatch.setenv("COLUMNS", "110")
    words = command.split("#", 1)[0].replace("\\\n", " ").split()
    assert words[:2] == ["zerokit", "plan"]
    found, out, err = zerokit(*words[1:], *COMMON.split())
    assert (found, err) == (code, "")
    assert missing_line(lines, out) is None, out


if __name__ == "__main__":
    page = PAGES.parent / "plan.md"
    for command, _, shown in BLOCKS:
        printed = output_of(f"{command.partition('#')[0].strip()} {COMMON}", PRICES.parent)
        page.write_text(page.read_text(encoding="utf-8").replace(shown, refreshed(shown, printed)), encoding="utf-8")

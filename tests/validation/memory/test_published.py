from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.validation.memory.published import BEGIN, DATA, END, PAGE, WRITTEN, by_source, median_error, table
from tests.validation.memory.published_rows import Judged, Unjudged, judge_all


@pytest.fixture(scope="module")
def found() -> Sequence[Judged | Unjudged]:
    return judge_all(json.loads(DATA.read_text(encoding="utf-8")))


def judged_as(found: Sequence[Judged | Unjudged], kind: str) -> list[Judged]:
    return [one for one in found if isinstance(one, Judged) and one.kind == kind]


@pytest.mark.slow
def test_every_row_is_judged_or_says_why_not(found: Sequence[Judged | Unjudged]) -> None:
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    assert {one.row for one in found} == set(range(len(rows)))
    assert all(one.why for one in found if isinstance(one, Unjudged))


def test_figures_of_the_allocator_are_within_5_percent(found: Sequence[Judged | Unjudged]) -> None:
    allocated = judged_as(found, "allocated")
    assert len(allocated) == 4
    assert median_error(allocated) <= 0.05
    assert all(abs(one.error) <= 0.05 for one in allocated)


def test_the_paper_s_tables_are_met(found: Sequence[Judged | Unjudged]) -> None:
    states = judged_as(found, "states")
    assert len(states) == 54 + 20
    # Table 2 prints 500B, 1T and 2T for 512, 1024 and 2048; Table 1 cuts a few figures off.
    assert all(abs(one.error) <= 0.025 for one in states)
    assert median_error(states) <= 0.002


def test_the_docs_show_today_s_figures(found: Sequence[Judged | Unjudged]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table(list(found)).strip()
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert [one.get("predicted") for one in written] == [getattr(one, "predicted", None) for one in found]


def test_sources_keep_their_figures_apart(found: Sequence[Judged | Unjudged]) -> None:
    groups = by_source(list(found))
    assert len({one.kind for judged in groups.values() for one in judged}) == 3
    for judged in groups.values():
        assert len({one.kind for one in judged}) == 1

"""How ranges are calibrated by published runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tests.validation.rehearsal import ranges
from tests.validation.rehearsal.ranges import CHOSEN, Judged, Options, Row, Table, groups, left_out

ROWS = ranges.published_rows()
RESULTS = json.loads(ranges.WRITTEN.read_text(encoding="utf-8"))


def row(off: float, source: str = "a", name: str = "DeepSpeed, kernels", *, number: int = 1) -> Row:
    return Row(number, source, name, off, {"low": 0.25, "high": 0.25})


def test_the_table_and_its_figures_are_those_of_the_recorded_rows() -> None:
    """Run ``python -m tests.validation.rehearsal.ranges --write`` if rows have changed."""
    assert json.loads(ranges.TABLE.read_text(encoding="utf-8")) == ranges.made_table(ROWS, ranges.calibrated_rows())
    assert ranges.results(ROWS) == RESULTS


def test_nine_of_ten_runs_of_sources_that_were_left_out_lie_inside() -> None:
    every = RESULTS["all"]
    assert every["rows"] == len(ROWS)
    assert min(every["left_out"]["coverage"], every["left_out"]["coverage_of_sources"]) >= 0.88
    for name in ("all", "DeepSpeed"):
        assert RESULTS[name]["left_out"]["score"] < RESULTS[name]["before"]["score"]


def test_a_source_that_is_left_out_has_no_part_in_its_ranges() -> None:
    source = next(one.source for one in ROWS if one.engine == "DeepSpeed")
    changed = [replace(one, off=9.0) if one.source == source else one for one in ROWS]
    both = zip(left_out(ROWS, CHOSEN).ranges, left_out(changed, CHOSEN).ranges, strict=True)
    changed_ranges = {one.source for (one, first), (_, second) in both if first != second}
    assert changed_ranges
    assert source not in changed_ranges


def test_a_row_whose_program_was_not_rehearsed_counts_only_where_ranges_are_judged() -> None:
    others = [one for one in ROWS if one.is_same_program]
    assert 2 in [one.row for one in ROWS if not one.is_same_program]
    assert Table(CHOSEN, others).classes() == Table(CHOSEN, ROWS).classes()
    assert len(groups(ROWS)["all"]) > len(others)


def test_sources_of_many_rows_count_more_but_not_as_many_times() -> None:
    rows = [row(0.0, "many"), row(0.0, "many"), row(0.0, "many"), row(0.0, "many"), row(1.0, "one")]
    assert ranges.weights_of(rows) == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert ranges._quantile([(3.0, 1.0), (1.0, 1.0), (2.0, 2.0)], 0.75) == 2.0
    assert ranges._quantile([(3.0, 1.0), (1.0, 1.0), (2.0, 2.0)], 0.76) == 3.0


@pytest.mark.parametrize(("power", "width"), [(0.0, 0.5), (0.5, 1.0), (1.0, 2.0)])
def test_widths_are_what_the_rows_need(power: float, width: float) -> None:
    rows = [row(0.5, f"source {number}", number=number) for number in range(30)]
    table = Table(Options(power=power), rows)
    assert table.classes()["DeepSpeed, kernels"] == {"low": 0.0, "high": width}
    assert table.range(rows[0]) == (-0.25, 0.5)


def test_a_class_without_rows_has_the_widths_of_all_and_few_rows_change_them_little() -> None:
    rows = [row(0.5 if number % 2 else 0.4, f"source {number}", number=number) for number in range(30)]
    table = Table(CHOSEN, rows)
    assert table.classes()["other, offload"] == table.classes()["DeepSpeed, kernels"]
    for off, high in ((0.1, 1.0), (2.0, 4.0)):  # never narrower than the engine's
        more = Table(CHOSEN, [*rows, row(off, "b", "DeepSpeed, host", number=99)]).classes()
        assert more["DeepSpeed, host"]["high"] == pytest.approx(high)
        assert more["DeepSpeed, kernels"]["high"] == pytest.approx(1.0)


def test_no_class_is_narrower_than_its_engine_and_calibrating_makes_none_wider() -> None:
    table = Table(CHOSEN, ROWS, ranges.calibrated_rows())
    of_engines = Table(Options(split=""), ROWS).classes()
    for name, widths in table.classes().items():
        usual = table.classes()[name.removesuffix(", calibrated")]
        for end in ranges.ENDS:
            assert widths[end] <= usual[end]
            assert usual[end] >= of_engines[name][end]


def test_the_score_has_the_width_and_what_lies_beyond() -> None:
    judged = Judged([(row(0.1), (-0.2, 0.3)), (row(0.5), (-0.2, 0.3)), (row(-0.3, "b"), (-0.2, 0.3))])
    assert judged.score == pytest.approx(0.5 + (20 * 0.2 + 20 * 0.1) / 3)
    assert judged.coverage == pytest.approx(1 / 3)
    assert judged.coverage_of_sources == pytest.approx(1 / 4)
    assert judged.width == pytest.approx(math.exp(0.5))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("InternLM/InternEvo train_performance.md throughput", "InternLM/InternEvo"),
        ("FlagPerf, DeepSpeed 0.11.1", "FlagPerf"),
        ("DeepSpeed issue 1234, comment", "DeepSpeed 1234"),
        ("DeepSpeed issue #99", "DeepSpeed 99"),
    ],
)
def test_a_source_is_a_repository_or_one_of_its_issues(name: str, source: str) -> None:
    assert ranges.source_of(name) == source

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
    table = Table(Options(shrinkage=90), rows)
    assert table.classes()["other, offload"] == table.classes()["DeepSpeed, kernels"]
    more = Table(Options(shrinkage=90), [*rows, row(2.0, "b", "DeepSpeed, host", number=99)]).classes()
    assert more["DeepSpeed, host"]["high"] == pytest.approx(1.0)
    more = Table(Options(shrinkage=1), [*rows, row(2.0, "b", "DeepSpeed, host", number=99)]).classes()
    assert more["DeepSpeed, host"]["high"] == pytest.approx(4.0)
    assert more["DeepSpeed, kernels"]["high"] == pytest.approx(1.0)


def test_steps_that_kernels_decide_are_never_wider_and_calibrating_makes_none_wider() -> None:
    found = Table(CHOSEN, ROWS, ranges.calibrated_rows()).classes()
    for name, widths in found.items():
        engine, _, *own = name.split(", ")
        for end in ranges.ENDS:
            assert widths[end] >= found[", ".join((engine, "kernels", *own))][end]
            assert widths[end] <= found[name.removesuffix(", calibrated")][end]
    best = min(ROWS, key=lambda one: one.off)
    far = [replace(best, off=-9.0, run_class="DeepSpeed, kernels") for _ in range(9)]
    table = Table(CHOSEN, [*ROWS, *far])
    assert table.widths("DeepSpeed", False)["low"] >= table.widths("DeepSpeed", True)["low"] > 9


def test_a_calibrated_machine_tells_of_steps_that_are_decided_alike() -> None:
    usual = Table(CHOSEN, ROWS).classes()
    certain = [row(0.01, "own", "DeepSpeed, kernels, calibrated", number=-number) for number in range(1, 200)]
    found = Table(CHOSEN, ROWS, certain).classes()
    assert found["DeepSpeed, kernels, calibrated"]["high"] < usual["DeepSpeed, kernels"]["high"] / 3
    assert found["DeepSpeed, host, calibrated"] == usual["DeepSpeed, host"]
    assert found["other, kernels, calibrated"] == usual["other, kernels"]


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

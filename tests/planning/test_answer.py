"""The answer of a plan: which plans it lists, and why others lost, for made-up memory and seconds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import get_args

import pytest

from tests.planning.test_search import RandomCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.models import load_model_shape
from zerokit.planning.answer import answer, answer_parts, format_hours
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.job import Limits, PlanJob
from zerokit.planning.prices import load_prices
from zerokit.planning.report import Obstacle, PlanReport, Range
from zerokit.planning.search import search
from zerokit.planning.workload import Workload
from zerokit.reporting.tables import Table
from zerokit.reporting.terminal import plain_lines
from zerokit.step_time import StepTime

CARDS = tuple(map(find_gpu, ("RTX 4090", "A100-40GB-SXM", "H100-SXM", "L40S")))
MODEL = load_model_shape("HuggingFaceTB/SmolLM2-135M")


class CostsByCard(RandomCosts):
    """Each card has a class of ranges of its own."""

    def seconds(self, candidate: Candidate, offer: Offer) -> StepTime:
        return replace(super().seconds(candidate, offer), run_class=offer.gpu.name)


def _report(seed: int, *, details: bool = False, costs: type[RandomCosts] = RandomCosts) -> PlanReport:
    random = Random(seed)
    limits = Limits(deadline_hours=random.choice((None, 5.0, 15.0)), budget_usd=random.choice((None, 20.0, 80.0)))
    offers = tuple(
        Offer(
            *(card, number, min(number, 8), random.uniform(0.5, 4)),
            network_gbit_s=None if number <= 8 else 3200.0,
            is_network_assumed=number > 8,
        )
        for card in CARDS
        for number in (1, 2, 4, 8, 12, 16, 24)
    )
    workload = Workload(num_sequences=100_000, seq_len=512, global_batch_size=32, packing=True)
    job = PlanJob(
        model=MODEL,
        model_name="tiny",
        workload=workload,
        offers=offers,
        limits=limits,
        goal=random.choice(("cost", "time")),  # type: ignore[arg-type]
    )
    not_sold = [(card, number, "not sold as several machines") for card in CARDS for number in (32, 64)]
    result = search(job, costs(seed))
    return answer(job, result, load_prices(), not_sold=not_sold, command="zerokit plan x", details=details)


@pytest.fixture(scope="module")
def reports() -> list[PlanReport]:
    return [_report(seed) for seed in range(12)]


def test_each_plan_is_worth_its_price(reports: list[PlanReport]) -> None:
    for report in reports:
        assert len(report.plans) <= 5
        assert report.plans[0].is_network_assumed or not any(one.is_network_assumed for one in report.plans)
        for before, after in pairwise(report.plans):
            speedup = before.hours.mid / after.hours.mid
            cost = after.cost_usd.mid / before.cost_usd.mid
            if report.goal == "cost":
                assert speedup >= 1.15
            else:
                assert cost <= 1 / 1.15
    assert max(len(report.plans) for report in reports) > 2


def test_every_kind_of_reason_is_given_and_cards_are_named_once(reports: list[PlanReport]) -> None:
    lost = [[one for one in report.rejected if one.by != "not sold"] for report in reports]
    assert {one.by for report in reports for one in report.rejected} == set(get_args(Obstacle))
    for report, options in zip(reports, lost, strict=True):
        cards = [one.gpu for one in options[3:] if report.plans]
        assert len(cards) == len(set(cards))
    reasons = {one.reason.split(" ")[0] for options in lost for one in options}
    assert reasons <= {"does", "likely", "needs", "costs", "may", "memory"}


def test_numbers_that_are_not_sold_share_a_line(reports: list[PlanReport]) -> None:
    report = next(one for one in reports if one.plans)
    card = report.plans[0].gpu
    lines = list(plain_lines(answer_parts(report)))
    for numbers, reason in (("32, 64", "not sold as several"), ("12, 24", "global batch 32 does not divide")):
        assert any(line.split() and f"{numbers} x {card}" in line and reason in line for line in lines)


def test_each_class_of_ranges_names_its_plans() -> None:
    means = "ine of ten real runs should lie within the range"
    for report in (_report(seed, costs=CostsByCard) for seed in range(5)):
        lines = [line for line in report.assumptions if means in line]
        cards = list(dict.fromkeys(plan.gpu for plan in report.plans))
        assert len(lines) == len(cards)
        for card, line in zip(cards, lines, strict=True):
            assert f"({card})" in line
            assert line.startswith("N") or line.count(" x ") == sum(plan.gpu == card for plan in report.plans)
            assert line.startswith("N") == (len(cards) == 1)


def test_details_list_every_option_once(reports: list[PlanReport]) -> None:
    detailed = _report(0, details=True)
    assert detailed.verdict == reports[0].verdict
    assert all(one in detailed.rejected for one in reports[0].rejected)
    considered = len(detailed.considered) - len(detailed.plans)
    assert len([one for one in detailed.rejected if "memory: needs" not in one.reason]) >= considered > 6
    lines = [len(list(plain_lines(answer_parts(detailed, details=details)))) for details in (False, True)]
    assert lines[1] - lines[0] > considered - 6


@pytest.mark.parametrize("width", [80, 200])
def test_tables_fit_a_terminal(reports: list[PlanReport], width: int) -> None:
    for part in (part for report in reports for part in answer_parts(report)):
        if isinstance(part, Table):
            lines = ["".join(text for text, _ in line) for line in part.lines(width)]
            assert max(map(len, lines), default=0) <= width


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        ((0.002, 0.0025, 0.003), "7.2 to 11 s"),
        ((0.2, 0.25, 0.3), "12 to 18 min"),
        ((3.1, 4, 4.6), "3.1 to 4.6 h"),
        ((5.0, 5.0, 5.0), "5.0 h"),
        ((50, 60, 70), "2.1 to 2.9 days"),
    ],
)
def test_hours_have_a_fitting_unit(hours: tuple[float, float, float], words: str) -> None:
    low, mid, high = hours
    assert format_hours(Range(low=low, mid=mid, high=high)) == words

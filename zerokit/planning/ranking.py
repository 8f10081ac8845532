"""Ranks the settings of all offers by hours and cost: the plans, what was considered, and why others lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from zerokit.planning.bill import Bill, num_trainable
from zerokit.planning.candidates import Offer
from zerokit.planning.job import Limits, PlanJob
from zerokit.planning.report import Meets, Met, Range
from zerokit.planning.search import Configuration, SearchResult

MOST_PLANS = 5
_MOST_CONSIDERED = 400
_SAME_COST = 0.05
"""Difference of costs that is less than they are known to."""
_ORDER: tuple[Met, ...] = ("meets", "likely", "misses")


@dataclass(frozen=True)
class Ranked:
    """Settings of an offer with their hours and cost."""

    found: Configuration
    bill: Bill
    limits: Limits

    @property
    def offer(self) -> Offer:
        """What is rented."""
        return self.found.offer

    @cached_property
    def meets(self) -> Meets:
        """Whether it is within the limits."""
        return Meets(
            deadline=met(self.bill.hours, self.limits.deadline_hours),
            budget=met(self.bill.cost, self.limits.budget_usd),
        )

    @property
    def worst(self) -> Met:
        """The worse of both; ``meets`` without limits."""
        both = [one for one in (self.meets.deadline, self.meets.budget) if one != "none"]
        return max(both, key=_ORDER.index, default="meets")

    @property
    def excess(self) -> float:
        """How far it is above the limits: hours or cost as a multiple of theirs; 1 within them."""
        shares = [1.0]
        if self.limits.deadline_hours is not None:
            shares.append(self.bill.hours.mid / self.limits.deadline_hours)
        if self.limits.budget_usd is not None:
            shares.append(self.bill.cost.mid / self.limits.budget_usd)
        return max(shares)

    def key(self, goal: str) -> tuple[float, ...]:
        """Sorts best first: within the limits, on a known network, surely within them, fits, `goal`."""
        hours, cost = self.bill.hours.mid, self.bill.cost.mid
        return (
            self.excess if self.worst == "misses" else 0.0,
            self.offer.is_network_assumed,
            _ORDER.index(self.worst),
            self.found.fit != "fits",
            *((hours, cost) if goal == "time" else (cost, hours)),
        )


def met(figure: Range, limit: float | None) -> Met:
    """``meets``: the slow end is within the limit; ``likely``: the middle is."""
    if limit is None:
        return "none"
    return "meets" if figure.high <= limit else "likely" if figure.mid <= limit else "misses"


def rank(job: PlanJob, result: SearchResult) -> list[Ranked]:
    """Everything that fits, best first.

    A cost within 5 % of the lowest is no reason to wait: of such plans for the goal cost the fastest comes
    first, if it is as good in all other respects.
    """
    trained = num_trainable(job)
    found = [
        Ranked(one, Bill(job, one.offer, one.time, trained), job.limits)
        for offer in result.offers
        for one in offer.configurations
    ]
    found.sort(key=lambda one: one.key(job.goal))
    if found and job.goal == "cost":
        best = found[0]
        alike = [
            one
            for one in found
            if one.key("cost")[:-2] == best.key("cost")[:-2]
            and one.bill.cost.mid <= (1 + _SAME_COST) * best.bill.cost.mid
        ]
        fastest = min(alike, key=lambda one: one.bill.hours.mid)
        found.remove(fastest)
        found.insert(0, fastest)
    return found


def choose_plans(ranked: Sequence[Ranked], goal: str = "cost") -> list[Ranked]:
    """The best and at most four others of the Pareto front of hours and cost that are worth their price.

    Each next plan is faster by at least 15 %, and its cost grows by at most twice as many percent as its
    speed. For the goal time each next plan costs at least 15 % less instead. None misses a limit or has an
    assumed network unless the best has; then the same GPUs with the other networks come second.
    """
    if not ranked:
        return []
    found = [best] = [ranked[0]]
    usable = [
        one
        for one in ranked
        if (one.worst == "misses") <= (best.worst == "misses")
        and one.offer.is_network_assumed <= best.offer.is_network_assumed
    ]
    on_front = [one for one in front(usable) if one.offer != best.offer]
    for one in on_front if goal == "time" else reversed(on_front):
        last, bill = found[-1].bill, one.bill
        speedup = last.hours.mid / bill.hours.mid
        if goal == "time":
            is_worth_it = last.cost.mid >= 1.15 * bill.cost.mid
        else:
            is_worth_it = speedup >= 1.15 and bill.cost.mid <= last.cost.mid * (1 + 2 * (speedup - 1))
        if is_worth_it:
            found.append(one)
    same_gpus = [
        one
        for one in usable
        if one.offer != best.offer
        and one.offer.is_network_assumed
        and replace(one.offer, network_gbit_s=best.offer.network_gbit_s) == best.offer
    ][:1]
    others, most = found[1:], MOST_PLANS - 1 - len(same_gpus)
    others = [one for one in others if one not in same_gpus]
    if len(others) > most:
        others = [others[round(place * (len(others) - 1) / (most - 1))] for place in range(most)]
    return [best, *same_gpus, *others]


def front(ranked: Iterable[Ranked]) -> list[Ranked]:
    """Those that no other beats in both hours and cost, fastest first."""
    found: list[Ranked] = []
    for one in sorted(ranked, key=lambda one: (one.bill.hours.mid, one.bill.cost.mid)):
        if not found or one.bill.cost.mid < found[-1].bill.cost.mid:
            found.append(one)
    return found


def considered_of(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The configurations that a report lists: the front, and the best others."""
    first = front(ranked)
    return [*first, *[one for one in ranked if one not in first][: _MOST_CONSIDERED - len(first)]]

"""The answer of a plan: its report, and its text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

from zerokit import __version__
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Parallelism
from zerokit.hardware.costs.ranges import range_line
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.planning.bill import bill_assumptions, num_trainable
from zerokit.planning.candidates import Candidate, Offer
from zerokit.planning.evaluate import forward_flops, peak_flops
from zerokit.planning.job import PlanJob
from zerokit.planning.prices import CardPrice
from zerokit.planning.ranking import Ranked, choose_plans, considered_of, rank
from zerokit.planning.recipe import ds_config_of
from zerokit.planning.report import (
    Choice,
    Considered,
    Obstacle,
    Offload,
    Parallel,
    Plan,
    PlanReport,
    Range,
    Rejected,
    Span,
)
from zerokit.planning.search import Costs, Fitting, Miss, SearchResult, best_of_offer, space_of
from zerokit.reporting.tables import Table
from zerokit.reporting.terminal import Command, Part, heading
from zerokit.reporting.verdicts import NEGATIVE
from zerokit.units import GIB, listed

_MOST_REASONS = 6
"""Lines of "Why not", besides those of numbers of GPUs that are not sold."""


def answer(
    job: PlanJob,
    result: SearchResult,
    prices: Mapping[str, CardPrice],
    *,
    not_sold: Sequence[tuple[Gpu, int, str]] = (),
    rehearsals: Mapping[tuple[Offer, Candidate], dict[str, Any]] | None = None,
    command: str = "",
    notes: Sequence[str] = (),
    details: bool = False,
) -> PlanReport:
    """The report of a search.

    Args:
        not_sold: card, number and reason of GPUs that are not offered.
        rehearsals: reports of ``zerokit rehearse`` by what was rehearsed.
        details: list every option that lost, instead of one of each card.

    Raises:
        ZerokitError: no settings of any offer are supported.
    """
    ranked = rank(job, result)
    chosen = choose_plans(ranked, job.goal)
    trained = num_trainable(job)
    plans = [_plan(job, one, (rehearsals or {}).get((one.offer, one.found.candidate))) for one in chosen]
    rented = {one.gpu.name for one in job.offers if one.usd_per_gpu_hour}
    return PlanReport(
        model=job.model_name,
        num_parameters=job.model.num_parameters,
        num_trainable_parameters=trained,
        method=job.method,
        tokens=job.workload.tokens,
        steps=job.workload.steps,
        seq_len=job.workload.seq_len,
        global_batch_size=job.workload.global_batch_size,
        deadline_hours=job.limits.deadline_hours,
        budget_usd=job.limits.budget_usd,
        goal=job.goal,
        verdict=_verdict(job, result, chosen, plans, ranked),
        meets_limits=bool(chosen) and chosen[0].worst != "misses",
        command=command,
        plans=plans,
        rejected=[*_lost(job, result, chosen, ranked, details=details), *_not_sold(job, result, chosen, not_sold)],
        considered=[
            Considered(
                **_choice(one),
                hours=one.bill.hours.mid,
                cost_usd=one.bill.cost.mid,
                usd_per_gpu_hour=one.offer.usd_per_gpu_hour,
            )
            for one in considered_of(ranked)
        ],
        assumptions=[*job.workload.notes, *_of_machines(chosen, ranked), *bill_assumptions(job, trained), *notes],
        prices=[price.used for price in prices.values() if price.gpu.name in rented],
        versions={"zerokit": __version__},
    )


def answer_parts(report: PlanReport, *, details: bool = False) -> Iterator[Part]:
    """The text of a report: verdict, plans, why not, assumptions, prices and command.

    Args:
        details: print every option that is listed, and the price of every card, with its whole source.
    """
    yield report.verdict
    yield ""
    columns = ["GPUs", "settings", "memory", "hours", "cost", "limits"]
    is_mixed = len({one.usd_per_gpu_hour > 0 for one in report.considered}) > 1
    plans = [_row(plan, is_mixed=is_mixed) for plan in report.plans]
    used = [place for place in range(len(columns)) if any(row[place] for row in plans)]
    yield Table("Plans", [columns[place] for place in used], [[row[place] for place in used] for row in plans])
    if report.plans:
        items = [
            [one.item, f"{_number(one.hours)} h", f"${_number(one.cost_usd)}" if one.cost_usd else ""]
            for one in report.plans[0].bill
        ]
        yield Table("Bill of the first plan", [], items)
    lost = [one for one in report.rejected if one.by != "not sold"]
    lost = lost if details else lost[:_MOST_REASONS]
    rows = [[f"{one.num_gpus} x {one.gpu}, {one.settings}", one.reason] for one in lost]
    not_sold: dict[tuple[str, str], list[int]] = {}
    for one in report.rejected:
        if one.by == "not sold":
            not_sold.setdefault((one.gpu, one.reason), []).append(one.num_gpus)
    for (gpu, reason), numbers in not_sold.items():
        few = ", ".join(map(str, numbers)) if len(numbers) < 5 else f"{numbers[0]} to {numbers[-1]}"
        rows.append([f"{few} x {gpu}", reason])
    yield Table("Why not", [], rows)
    if report.assumptions:
        yield heading("Assumptions")
        yield from (f"  {line}" for line in report.assumptions)
        yield ""
    named = {plan.gpu for plan in report.plans} | {one.gpu for one in lost}
    prices = [one.row for one in report.prices if details or one.gpu in named]
    if not details:
        prices = [[*row, shorten(re.split("[,:;]", source)[0], 29, placeholder="")] for *row, source in prices]
    yield Table("USD per GPU-hour", ["GPU", "USD", "seen", "date", "source"], prices)
    if report.command:
        yield heading("Repeat with")
        yield Command([shlex.quote(word) for word in shlex.split(report.command)])


_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"(?:stage|zero)[ -]?(\d)", {"zero_stage": int}),
    (r"(?:mbs|micro[ -]batch)[ =]?(\d+)", {"micro_batch_size": int}),
    (r"sequence parallelism (\d+)", {"parallel": lambda size: Parallelism(int(size))}),
    (r"(?:gradient )?checkpointing", {"gradient_checkpointing": True}),
    (r"chunked loss", {"chunked_loss": True}),
    (r"optimizer and parameters on the host", {"offload_optimizer": "cpu", "offload_param": "cpu"}),
    (r"optimizer on the host|offload(?:ed)?", {"offload_optimizer": "cpu"}),
)
"""What :func:`explain` reads, in any order: settings by the names of `Candidate`."""


def _read_settings(text: str) -> tuple[int, Gpu, dict[str, Any]]:
    """The number of GPUs, the card and the settings that a text names."""
    wanted: dict[str, Any] = {}
    rest = text
    for pattern, settings in _SETTINGS:
        if match := re.search(pattern, rest, re.IGNORECASE):
            rest = rest[: match.start()] + rest[match.end() :]
            wanted |= {name: of if match.lastindex is None else of(match[1]) for name, of in settings.items()}
    gpus = re.fullmatch(r"(\d{1,6})(?: *x *| +)(\S.*)", rest.strip(" ,"), re.IGNORECASE)
    if gpus is None:
        hint = "Write it like '8xA100-40 stage 3 mbs 2 checkpointing offload'"
        raise ZerokitError(f"'{text}' names no number of GPUs and card", where="--explain", hint=hint)
    try:
        return int(gpus[1]), find_gpu(gpus[2].strip(" ,")), wanted
    except ZerokitError:
        hint = "Write it like '8xA100-40 stage 3 mbs 2'; zerokit gpus lists the cards"
        raise ZerokitError(f"'{gpus[2].strip(' ,')}' is no card", where="--explain", hint=hint) from None


def explain(text: str, job: PlanJob, result: SearchResult, costs: Costs) -> str:
    """Why settings lost, in a sentence or two: ``"8xA100-40 stage 3 mbs 2 checkpointing offload"``.

    Settings that the text does not name are chosen.

    Raises:
        ZerokitError: the text names no card and number, or nothing that was considered.
    """
    where = "--explain"
    number, gpu, wanted = _read_settings(text)
    of_card = {one.num_gpus: one for one in job.offers if one.gpu.name == gpu.name}
    if number not in of_card:
        hint = f"Choose one of {', '.join(map(str, sorted(of_card)))}" if of_card else "Name it with --gpu"
        raise ZerokitError(f"{number} x {gpu.name} was not considered", where=where, hint=hint)
    offer = of_card[number]
    space = space_of(job)
    space = replace(space, wanted=wanted, parallel=wanted.get("parallel", space.parallel))
    if not space.micro_batches(number):
        return f"{offer.words}: {_undivided(job, number)}."
    size = wanted.get("micro_batch_size")
    if size is not None and size not in space.micro_batches(number):
        batch = f"global batch {job.workload.global_batch_size:,}"
        return f"{offer.words}: micro batch {size} does not divide the {batch} among {number} GPUs."
    found = best_of_offer(offer, space, costs, Fitting(costs, space))
    if own := rank(job, SearchResult([found])):
        lost = f"{offer.words}, {own[0].found.candidate.words}: {_hours_and_cost(own[0])}."
        best = next(iter(rank(job, result)), own[0])
        if own[0].key(job.goal) <= best.key(job.goal):
            return f"{lost} Nothing is better."
        return f"{lost} Compared with {best.offer.words}: {_loses(job, own[0], best)[0]}."
    if (miss := found.nearest_miss) is None:
        raise ZerokitError("no such settings are supported", where=where, hint="Name fewer of them")
    return f"{offer.words}, {miss.candidate.words}: {_shortage(miss)[0]}."


# Verdict ---------------------------------------------------------------------------------------------------


def _verdict(
    job: PlanJob, result: SearchResult, chosen: Sequence[Ranked], plans: Sequence[Plan], ranked: Sequence[Ranked]
) -> str:
    stopped = "" if result.is_complete else " The search was stopped: this is the best so far."
    if not chosen:
        misses = [one.nearest_miss for one in result.offers if one.nearest_miss is not None]
        if not misses and not result.offers and result.undivided:
            return f"Nothing can be planned: {_undivided(job, result.undivided[-1].num_gpus)}.{stopped}"
        if not misses:
            return f"Nothing fits.{_lighter(job)}{stopped}"
        miss = min(misses, key=lambda miss: miss.shortage)
        nearest = f"{miss.offer.words}, {miss.candidate.words}, {_shortage(miss)[0]}"
        return f"Nothing fits. The nearest: {nearest}.{_lighter(job)}{stopped}"
    best, plan = chosen[0], plans[0]
    rent = f"{'rent' if plan.usd_per_gpu_hour else 'use'} {best.offer.num_gpus} x {best.offer.gpu.name} for "
    rent += format_hours(plan.hours) + f": {_dollars(plan.cost_usd)}" * (plan.usd_per_gpu_hour > 0)
    if best.worst == "misses":
        return f"{_impossible(job)} The nearest: {rent}, {_excess(job, best)}.{stopped}"
    verdict = f"{rent[0].upper()}{rent[1:]}. {plan.settings}"
    if plan.offload.optimizer or plan.offload.parameters:
        verdict += f" (needs {_gib(plan.host_bytes.low, plan.host_bytes.high)} of host memory)"
    verdict += ", rehearsed." if plan.rehearsed else ", estimated by formulas."
    if plan.fit == "tight":
        verdict += " Memory is tight."
    if best.worst == "likely":
        verdict += " The slow end of the range is above the limits."
    if best.offer.is_network_assumed:
        gpus = best.offer.gpu, best.offer.num_gpus
        same = [one for one in reversed(ranked) if (one.offer.gpu, one.offer.num_gpus) == gpus]
        hours = {one.offer.network_gbit_s or 0: format_hours(one.bill.hours) for one in same}
        ends = ", ".join(f"{hours[speed]} at {speed:,g} Gbit/s per node" for speed in sorted(hours))
        verdict += f" That depends on the network: {ends}. Give yours with --network."
    return verdict + _faster(chosen) + stopped


def _lighter(job: PlanJob) -> str:
    """What needs less memory on the same machines."""
    if job.lora is None:
        return " Adapters need far less memory (--lora-rank 16)."
    return "" if job.load_in_4bit else " Weights in 4 bits need less memory (--load-in-4bit)."


def _faster(chosen: Sequence[Ranked]) -> str:
    """The plan that is at least twice as fast for at most half as much again, if there is one."""
    best = chosen[0].bill
    for one in sorted(chosen[1:], key=lambda one: one.bill.cost.mid):
        more, speedup = one.bill.cost.mid - best.cost.mid, best.hours.mid / one.bill.hours.mid
        if speedup >= 2 and more <= best.cost.mid / 2:
            extra = f"for ${_number(more)} more" if more > 0 else "at no extra cost"
            return f" {one.offer.words} is {_number(speedup)} times as fast {extra}."
    return ""


def _impossible(job: PlanJob) -> str:
    """That nothing meets the limits, with a bound that no settings can beat if it is above them."""
    limits = job.limits
    deadline = limits.deadline_hours
    named = [f"a deadline of {format_hours(Range(low=deadline, mid=deadline, high=deadline))}"] if deadline else []
    named += [f"a budget of ${_number(limits.budget_usd)}"] if limits.budget_usd else []
    flops = (3 if job.lora is None else 2) * forward_flops(job) * job.workload.tokens
    bounds = [(flops / peak_flops(one) / 3600 * one.num_gpus * one.usd_per_gpu_hour, one) for one in job.offers]
    cost, offer = min(bounds, key=lambda bound: bound[0])
    bound = ""
    if limits.budget_usd is not None and cost > limits.budget_usd:
        bound = f" Even at the peak of {offer.gpu.name} the matmuls alone cost ${_number(cost)}."
    return f"Nothing meets {' and '.join(named)}.{bound}"


def _excess(job: PlanJob, one: Ranked) -> str:
    words = []
    if job.limits.deadline_hours is not None and one.meets.deadline == "misses":
        words.append(f"{_number(one.bill.hours.mid / job.limits.deadline_hours)} times the deadline")
    if job.limits.budget_usd is not None and one.meets.budget == "misses":
        words.append(f"{_number(one.bill.cost.mid / job.limits.budget_usd)} times the budget")
    return " and ".join(words)


def _of_machines(chosen: Sequence[Ranked], ranked: Sequence[Ranked]) -> Iterator[str]:
    """What ranges mean, and what is assumed of networks and host memory, one sentence each."""
    lines = [(range_line(one.found.time.run_class, one.found.time.narrower_with), one.offer.words) for one in chosen]
    classes = dict.fromkeys(line for line, _ in lines)
    for line in classes:
        offers = listed([offer for its_line, offer in lines if its_line == line])
        yield f"{line}." if len(classes) == 1 else f"{offers}: {line[0].lower()}{line[1:]}."
    if any(one.offer.is_network_assumed for one in chosen):
        yield "Nodes are assumed to have a network of 100 or 3,200 Gbit/s each; --network names yours."
    elif any(one.offer.is_network_assumed for one in ranked):
        yield "Plans of several nodes are left out, because their network is unknown; --network adds them."
    for one in chosen[:1]:
        offloads = one.found.candidate.offload_optimizer or one.found.candidate.offload_param
        if offloads and one.offer.host_bytes is None:
            known = one.offer.cluster.known_host_bytes
            size = "enough host memory" if known is None else f"{_gib(known)} of host memory"
            node = f"{one.offer.gpus_per_node} x {one.offer.gpu.name}"
            yield f"A machine with {node} is assumed to have {size}; --host-memory changes it."


# Plans -----------------------------------------------------------------------------------------------------


def _plan(job: PlanJob, one: Ranked, rehearsal: dict[str, Any] | None) -> Plan:
    need, time = one.found.need, one.found.time
    ds_config, reasons = ds_config_of(one.found.candidate, job)
    return Plan(
        **_choice(one),
        settings=one.found.candidate.words,
        rehearsed=rehearsal is not None,
        device_bytes=Span(low=need.device_low, high=need.device_high),
        gpu_memory_bytes=one.offer.gpu.memory_bytes,
        host_bytes=Span(low=need.host_low, high=need.host_high),
        host_memory_bytes=one.offer.cluster.known_host_bytes,
        nvme_bytes=need.nvme,
        step_seconds=Range(low=time.low_seconds, mid=time.seconds, high=time.high_seconds),
        run_class=time.run_class,
        narrower_with=time.narrower_with,
        step_parts=dict(time.parts),
        memory_parts=dict(need.at_peak),
        hours=one.bill.hours,
        cost_usd=one.bill.cost,
        usd_per_gpu_hour=one.offer.usd_per_gpu_hour,
        bill=one.bill.items,
        meets=one.meets,
        ds_config=ds_config,
        reasons=reasons,
        rehearsal=rehearsal,
    )


def _choice(one: Ranked) -> dict[str, Any]:
    """What `Plan` and `Considered` share: the fields of `Choice`, and `fit`."""
    offer, candidate = one.offer, one.found.candidate
    parts: dict[str, Any] = {
        "fit": one.found.fit,
        "gpu": offer.gpu.name,
        "parallel": Parallel(data=candidate.data_ranks, **vars(candidate.parallel)),
        "offload": Offload(optimizer=candidate.offload_optimizer, parameters=candidate.offload_param),
    }
    for name in Choice.model_fields.keys() - parts.keys():
        parts[name] = getattr(offer, name) if hasattr(offer, name) else getattr(candidate, name)
    return parts


def _row(plan: Plan, *, is_mixed: bool) -> list[str]:
    """A row of the table of plans.

    Args:
        is_mixed: whether some GPUs are rented and some are not, so that the row has to say it.
    """
    verb = "" if not is_mixed else "rent " if plan.usd_per_gpu_hour else "use "
    network = "" if plan.network_gbit_s is None else f" at {plan.network_gbit_s:,g} Gbit/s"
    limits = {plan.meets.deadline, plan.meets.budget}
    return [
        f"{verb}{plan.num_gpus} x {plan.gpu}{network}",
        plan.settings,
        f"{plan.fit}{', rehearsed' * plan.rehearsed}",
        format_hours(plan.hours),
        _dollars(plan.cost_usd) if plan.usd_per_gpu_hour else "",
        next((one for one in ("misses", "likely", "meets") if one in limits), ""),
    ]


# Why not ---------------------------------------------------------------------------------------------------


def _lost(
    job: PlanJob, result: SearchResult, chosen: Sequence[Ranked], ranked: Sequence[Ranked], *, details: bool
) -> Iterator[Rejected]:
    """Options that lost: three next to the best plan, then one of each other card, the nearest first.

    Next to the best are its faster setting that lacks least memory, the nearest cheaper option, and the
    cheapest one that is faster than all plans. Of a card it is the best that fits, else the one that lacks
    least memory; the distance is a factor of memory, cost or hours. With `details` all others follow.
    """
    found: list[tuple[float, Ranked | Miss]] = []
    for of_offer in result.offers:
        is_best = bool(chosen) and of_offer.offer == chosen[0].offer
        if (miss := of_offer.nearest_miss) is not None and (is_best or not of_offer.configurations):
            found.append((0.0 if is_best else miss.shortage, miss))
    if chosen:
        others = [(one, *_ratios(one, chosen[0])) for one in ranked if one not in chosen]
        by_cost = sorted(others, key=lambda other: other[2])
        bound = min(_ratios(one, chosen[0])[0] for one in chosen) / 1.15
        cheaper = [one for one, _, cost in by_cost if cost < 0.95]
        faster = [one for one, hours, _ in by_cost if hours <= bound]
        found += [(0.0, one) for one in (*cheaper[-1:], *faster[:1])]
        is_by_hours = job.goal == "time" or not chosen[0].offer.usd_per_gpu_hour
        for one, hours, cost in others:
            share = hours if is_by_hours or not cost else cost
            found.append((max(share, 1 / share), one))
    is_one_card = not chosen and len({one.offer.gpu for one in result.offers}) == 1
    listed: set[Any] = {one.offer.gpu for one in chosen}
    for distance, option in sorted(found, key=lambda pair: pair[0]):
        key = option.offer if is_one_card else option.offer.gpu
        if not distance or (id(option) if details else key) not in listed:
            listed |= {key, id(option)}
            if isinstance(option, Miss):
                lost, candidate = _shortage(option), option.candidate
            else:
                lost, candidate = _loses(job, option, chosen[0]), option.found.candidate
            yield _rejected(option.offer.gpu, option.offer.num_gpus, *lost, candidate)


def _not_sold(
    job: PlanJob, result: SearchResult, chosen: Sequence[Ranked], not_sold: Sequence[tuple[Gpu, int, str]]
) -> Iterator[Rejected]:
    """Numbers of GPUs that are not sold, or do not divide the global batch: of the best plan's card."""
    undivided = dict.fromkeys((one.gpu, one.num_gpus, _undivided(job, one.num_gpus)) for one in result.undivided)
    cards = {one.offer.gpu for one in chosen[:1]} or {one.gpu for one in job.offers}
    for gpu, number, reason in (*not_sold, *undivided):
        if gpu in cards:
            yield _rejected(gpu, number, reason, "not sold")


def _rejected(gpu: Gpu, number: int, reason: str, by: Obstacle, candidate: Candidate | None = None) -> Rejected:
    stage, words = (0, "") if candidate is None else (candidate.zero_stage, candidate.words)
    return Rejected(gpu=gpu.name, num_gpus=number, zero_stage=stage, settings=words, reason=reason, by=by)


def _shortage(miss: Miss) -> tuple[str, Obstacle]:
    """``"does not fit: needs 94.3 to 101.0 GiB of 79.2 GiB, in backward"``."""
    need, offer = miss.need, miss.offer
    if (verdict := need.gpu_verdict(offer)) in NEGATIVE:
        has = _gib(offer.gpu.memory_bytes)
        needs = f"{_gib(need.device_low, need.device_high)} of {has}, in {need.phase}"
        smallest = miss.candidate.micro_batch_size == 1 and miss.candidate.gradient_checkpointing
        if smallest and miss.lacks_activations and miss.candidate.parallel.sequence == 1:
            needs += "; sequence parallelism would divide its activations among GPUs"
        return f"{verdict}: needs {needs}", "gpu memory"
    has = _gib(offer.cluster.known_host_bytes or 0)
    needs = f"{_gib(need.host_low, need.host_high)} of {has}"
    return f"{need.host_verdict(offer)} in host memory: needs {needs}", "host memory"


def _loses(job: PlanJob, one: Ranked, best: Ranked) -> tuple[str, Obstacle]:
    """Why an option that fits is not the best."""
    if one.worst == "misses" and best.worst != "misses":
        by: Obstacle = "deadline" if one.meets.deadline == "misses" else "budget"
        return f"needs {_excess(job, one)}: {_hours_and_cost(one)}", by
    hours, cost = _ratios(one, best)
    compared = _compared(hours, cost if best.bill.cost.mid else None)
    if one.offer.is_network_assumed and not best.offer.is_network_assumed:
        speed = f"{one.offer.network_gbit_s:,g} Gbit/s"
        return f"{compared}, if its network has {speed}: give yours with --network", "network"
    if one.worst != best.worst:
        return f"may miss the limits: {compared}", "deadline" if cost <= 1 else "budget"
    if one.found.fit != best.found.fit:
        return f"memory is tight: {compared}", "gpu memory"
    return compared, "time" if job.goal == "time" or cost <= 1.0 else "price"


def _ratios(one: Ranked, best: Ranked) -> tuple[float, float]:
    """Hours and cost as multiples of the best plan's; those of GPUs without a price cost the same."""
    cost = one.bill.cost.mid / best.bill.cost.mid if best.bill.cost.mid else 1.0
    return one.bill.hours.mid / best.bill.hours.mid, cost


def _compared(hours: float, cost: float | None) -> str:
    """``"costs 1.4 times as much, takes 2.1 times as long"``; no cost for GPUs without a price."""
    takes = f"takes {_number(hours)} times as long" if hours > 1 else f"is {_number(1 / hours)} times as fast"
    takes = "takes about as long" if 0.95 < hours < 1.05 else takes
    if cost is None:
        return takes
    costs = f"costs {_number(cost)} times as much" if cost >= 1.05 else f"costs {1 - cost:.0%} less"
    return f"{'costs about as much' if 0.95 < cost < 1.05 else costs}, {takes}"


def _undivided(job: PlanJob, num_gpus: int) -> str:
    group = job.parallelism.group_size if job.parallelism is not None else 1
    if num_gpus % group:
        return f"--sequence-parallel and --tensor-parallel need a multiple of {group} GPUs"
    return f"global batch {job.workload.global_batch_size} does not divide evenly among so many GPUs"


# Figures ---------------------------------------------------------------------------------------------------


def _hours_and_cost(one: Ranked) -> str:
    return f"{format_hours(one.bill.hours)}, {_dollars(one.bill.cost)}"


def format_hours(hours: Range) -> str:
    """``"3.1 to 4.6 h"``, ``"12 to 17 min"``, ``"6.0 to 8.1 s"``, ``"2.1 to 2.9 days"``."""
    units = {1 / 60: (3600, "s"), 1: (60, "min"), 48: (1, "h")}
    factor, unit = next((unit for below, unit in units.items() if hours.high < below), (1 / 24, "days"))
    low, high = _number(factor * hours.low), _number(factor * hours.high)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _dollars(cost: Range) -> str:
    """``"$62 to $91"``."""
    low, high = (f"{usd:.2f}" if usd < 10 else f"{usd:,.0f}" for usd in (cost.low, cost.high))
    return f"${low}" if low == high else f"${low} to ${high}"


def _gib(*sizes: int) -> str:
    """``"48.5 to 55.0 GiB"``."""
    return " to ".join(dict.fromkeys(f"{size / GIB:,.1f}" for size in sizes)) + " GiB"


def _number(number: float) -> str:
    """Two digits at least: ``"3.1"``, ``"62"``, ``"1,450"``."""
    return f"{number:.2f}" if number < 1 else f"{number:.1f}" if number < 10 else f"{number:,.0f}"

"""What the templates print of a document: names, verdicts, bars and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zerokit.documents import dotted, leaves
from zerokit.reporting.categories import CATEGORIES
from zerokit.reporting.verdicts import NEGATIVE, VERDICTS, Verdict, verdict_line
from zerokit.units import format_span, quantity

_MOST_CONFIGURATIONS = 250
_LONGEST_VALUE = 200
_PLACES = {"cpu": "the host", "nvme": "NVMe"}


def gpus(choice: Any) -> str:
    """``"2 x 8 x H100"``."""
    nodes = choice.num_gpus // max(1, choice.gpus_per_node)
    return f"{nodes} x {choice.gpus_per_node} x {choice.gpu}" if nodes > 1 else f"{choice.num_gpus} x {choice.gpu}"


def settings(choice: Any) -> str:
    """``"ZeRO-2, micro batch 4 x 2, checkpointing"``."""
    steps, offload = choice.gradient_accumulation_steps, choice.offload
    assumed = " assumed" * choice.is_network_assumed
    parts = {
        f"ZeRO-{choice.zero_stage}": True,
        f"micro batch {choice.micro_batch_size}{f' x {steps}' * (steps > 1)}": True,
        "checkpointing": choice.gradient_checkpointing,
        "chunked loss": choice.chunked_loss,
        f"optimizer on {_PLACES.get(offload.optimizer)}": offload.optimizer,
        f"parameters on {_PLACES.get(offload.parameters)}": offload.parameters,
        "hpZ": choice.hpz,
        f"{choice.network_gbit_s or 0:g} Gbit/s{assumed}": choice.network_gbit_s,
    }
    return ", ".join(words for words, is_set in parts.items() if is_set)


def configurations(plan: Any) -> tuple[list[tuple[int, Any, int | None]], int]:
    """The best configurations, and how many others there are.

    Each has its place and the number of its plan, or None. The page's script ranks by the same rule.
    """
    plans = reversed([*enumerate(plan.plans, start=1)])
    numbers = {(gpus(one), settings(one)): number for number, one in plans}

    def rank(one: Any) -> tuple[Any, ...]:
        figures = (one.hours, one.cost_usd) if plan.goal == "time" else (one.cost_usd, one.hours)
        return one.is_network_assumed, not is_within(one, plan), one.fit != "fits", *figures

    ranked = sorted(plan.considered, key=rank)
    shown = ranked[:_MOST_CONFIGURATIONS]
    rows = [(place, one, numbers.get((gpus(one), settings(one)))) for place, one in enumerate(shown)]
    return rows, len(ranked) - len(shown)


def is_within(one: Any, plan: Any) -> bool:
    """Whether a configuration is within deadline and budget."""
    in_time = plan.deadline_hours is None or one.hours <= plan.deadline_hours
    return in_time and (plan.budget_usd is None or one.cost_usd <= plan.budget_usd)


class Bar(NamedTuple):
    """The memory of one GPU at the peak, by category."""

    name: str
    held: Mapping[str, int]
    low: int
    high: int
    memory: int | None


def bar_of_estimate(one: Any) -> Bar:
    """Its terms at the peak."""
    held: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    for term in one.device.components:
        if term.phase in ("always", one.device.peak_phase) and term.category in held:
            held[term.category] += term.bytes
    sharding = "no ZeRO" if one.zero_stage == "none" else f"ZeRO-{one.zero_stage}"
    size = f"micro batch {one.run.micro_batch_size}" + (f", {one.run.seq_len:,} tokens" if one.run.seq_len else "")
    name = f"{sharding}, {one.world_size:,} x {one.run.gpu or 'GPU'}, {size}"
    memory = None if one.fit is None else one.fit.gpu_memory_bytes
    return Bar(name, held, one.device.low_bytes, one.device.high_bytes, memory)


def verdict_of(fit: Any) -> str:
    """In words, of an estimate or a rehearsal."""
    needed = "needed_" if hasattr(fit, "needed_low_bytes") else ""
    low, high = (getattr(fit, f"{needed}{end}_bytes") for end in ("low", "high"))
    return verdict_line(fit.verdict, low, high, fit.gpu_memory_bytes, fit.host, has_options=False).plain


def verdict_of_all(estimates: Sequence[Any]) -> str:
    """One's own; of several, how many fit."""
    fits = [one.fit for one in estimates if one.fit is not None]
    if len(estimates) > 1 and fits:
        good = sum(fit.verdict not in NEGATIVE for fit in fits)
        return f"{good} of {quantity(len(estimates), 'setting')} fit"
    device = estimates[0].device
    return verdict_of(fits[0]) if fits else f"Needs {format_span(device.low_bytes, device.high_bytes)} of each GPU"


def tone(verdicts: Sequence[Verdict]) -> str:
    """The colour of the best verdict: good, doubtful, bad; nothing without one."""
    best = min(verdicts, key=VERDICTS.index, default=None)
    return "" if best is None else {"fits": "good", "tight": "doubtful"}.get(best, "bad")


def name_of_run(run: Any) -> str:
    """The path of its model."""
    model = run.recipe.get("model")
    return str(model["path"]) if isinstance(model, dict) and model.get("path") else str(run.run_id)


def keys(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every dotted key with its value as JSON."""
    rows = [(dotted(path), json.dumps(value, ensure_ascii=False)) for path, value in leaves(config)]
    return [(key, text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}...") for key, text in rows]


def usd(cost: float) -> str:
    """``"$62"``, ``"$2.49"``."""
    return f"${cost:,.0f}" if cost >= 10 else f"${cost:.2f}"


def ms(seconds: float) -> str:
    """``"12.3 ms"``."""
    return f"{1000 * seconds:,.1f} ms"

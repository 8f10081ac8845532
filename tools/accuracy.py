"""Write docs/accuracy.md from its template and the recorded results.

``python -m tools.accuracy`` renders tools/accuracy.md.j2 with the figures of tests/validation/results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "validation" / "results"
PAGE = ROOT / "docs" / "accuracy.md"
TEMPLATE = Path(__file__).with_name("accuracy.md.j2")

KNOWN_SCRIPTS = ("bf16-", "chat-dpo-", "ml-engineering-8b-")
"""Names of published peaks whose script, model, shapes and data are all known begin so."""
FIRST_LATER_ROW = 300
FIRST_NEWEST_ROW = 400
"""Published times from the first of these rows on were looked for after all costs had been fixed."""
OWN_DEEPSPEED_ROWS = {1, 2, 19, 20, 21, 35, 208, 210, 219}
"""Published times, gathered first, that are runs of DeepSpeed's own engine."""
FRESH_PLANS = "seed 7"
"""The errors of this seed's rows before any formula was corrected with them: `blind_error`."""


def percent(value: float, digits: int = 0) -> str:
    """Return a share as a percentage without its sign, such as ``5.2 %``."""
    return f"{abs(value) * 100:.{digits}f} %"


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _error_figures(errors: Iterable[float]) -> dict[str, Any]:
    """Return count, median, 90th percentile and worst of errors (relative, signed), by their size."""
    sizes = sorted(map(abs, errors))
    return {
        "count": len(sizes),
        "median": statistics.median(sizes),
        "p90": sizes[-(-9 * len(sizes) // 10) - 1],
        "worst": sizes[-1],
        "beyond_a_quarter": sum(size > 0.25 for size in sizes),
    }


def _length_errors(size: str, limit: str) -> dict[str, Any]:
    rows = [row for row in _read("alst_lengths").values() if row["limit"] == limit]
    errors = [row["error"] for row in rows if row["model"].endswith(size)]
    return {"count": len(errors), "least": min(errors), "worst": max(errors)}


def _parallel_memory() -> dict[str, Any]:
    found = _read("parallel_memory")
    summary = found["summary"]
    worst = max(summary["highest"], -summary["lowest"])
    return {"rows": len(found["rows"]), "median": summary["median"], "worst": worst}


def figures() -> dict[str, Any]:
    """Return the figures of the page by name."""
    peaks = [row for row in _read("published") if row.get("error") is not None]
    known = [row["error"] for row in peaks if row["name"].startswith(KNOWN_SCRIPTS)]
    others = [row["error"] for row in peaks if not row["name"].startswith(KNOWN_SCRIPTS)]
    draws = [draw["summary"] for draw in _read("estimate_random")["draws"].values()]
    published: dict[str, list[float]] = {}
    for row in _read("estimate_published"):
        if row.get("error") is not None:
            published.setdefault(row["kind"], []).append(row["error"])
    times = [row for row in _read("published_times") if row.get("error") is not None]
    first = [row for row in times if row["row"] < FIRST_LATER_ROW]
    later = [row for row in times if FIRST_LATER_ROW <= row["row"] < FIRST_NEWEST_ROW]
    newest = [row for row in times if row["row"] >= FIRST_NEWEST_ROW]
    later_deepspeed = [row["error"] for row in later if "FSDP" not in str(row["published"]["zero_stage"])]
    plan_times = _read("plan_step_times")
    fresh = [row["blind_error"] for row in plan_times[FRESH_PLANS].values() if "error" in row]
    return {
        "real_runs": _read("real_runs"),
        "peaks_known": _error_figures(known),
        "peaks_others": _error_figures(others),
        "scripts": _read("scripts"),
        "environments": len(_read("environments")),
        "random_points": sum(draw["points"] for draw in draws),
        "random_worst": max(max(draw["worst_above"], -draw["worst_below"]) for draw in draws),
        "random_median": max(draw["median"] for draw in draws),
        "allocated": _error_figures(published["allocated"]),
        "driver_low": min(published["driver"]),
        "driver_high": max(published["driver"]),
        "times": _error_figures(row["error"] for row in first),
        "ranges": _read("ranges"),
        "times_deepspeed": _error_figures(r["error"] for r in first if r["row"] in OWN_DEEPSPEED_ROWS),
        "times_later": _error_figures(later_deepspeed),
        "times_newest": _error_figures(row["error"] for row in newest),
        "times_newest_inside": sum(row["low"] <= row["measured"] <= row["high"] for row in newest),
        "plan_times": _error_figures(
            row["error"] for seed in plan_times.values() for row in seed.values() if "error" in row
        ),
        "plan_times_fresh": _error_figures(fresh),
        "plan_times_second": sorted(map(abs, fresh))[-2],
        "parallel_times": _error_figures(row["error"] for row in _read("parallel_step_times").values()),
        "lengths_8b": _length_errors("8B", "32-bit indices"),
        "lengths_qwen": _length_errors("32B", "32-bit indices"),
        "lengths_host": _length_errors("B", "host memory"),
        "parallel": _parallel_memory(),
        "swift": _read("long_context")["ms-swift QwQ-32B at 512,000 tokens"],
        "whole_steps": _read("whole_steps"),
        "wild": _read("wild_configs"),
        "tasks": _read("tasks")["cells"],
        "exports": _read("old_releases")["releases"],
        "reshard": max(cell["largest_difference"] for cell in _read("reshard")["cells"]),
        "groups": max(
            row["loss"]
            for row in (*_read("sequence_parallel")["differences"].values(), *_read("tensor_parallel").values())
        ),
        "damaged": _read("damaged_checkpoints"),
        "deaths": _read("deaths"),
        "drill": _read("fault_drill"),
        "bad_inputs": _read("bad_inputs"),
        "generation": _read("generation_memory")["summary"],
        "held_out": _read("generation_memory")["held_out"],
        "offloaded": _read("generation_published")["opt_30b_offloaded"],
        "gathered": _read("generation_published")["8b_gathered_to_sharded"],
    }


def rendered() -> str:
    """Return the page as it should be."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - Markdown
    environment.filters["percent"] = percent
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(figures())


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")

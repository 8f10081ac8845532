"""Writes ``zerokit/hardware/costs/python_calls.json``: ``python -m tools.host_costs``.

Each workload is profiled for a few steps, beside the unit, the call of a usual Python function. ``--show`` prints
what the table explains of each workload's time without the profiler, and the functions that take most.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from tools.host_costs import workloads
from tools.host_costs.fit import SIZES, Caches, Fitted, explained_units, fit, fit_all, groups, places_of, undisturbed
from tools.host_costs.profiler import NODE, OPERATOR, SAMPLED, Overhead, Profiler
from zerokit.calibration.host import count_calls, programs
from zerokit.calibration.seconds import seconds_of
from zerokit.garbage import paused_collection
from zerokit.hardware.costs import python_calls
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.python_calls import PASS, SMALLEST_PASS, Kind, function_name, kind_of

WRITTEN = Path(python_calls.__file__).with_suffix(".json")
PACKAGES = ("deepspeed", "torch", "accelerate", "transformers")
ROUNDS = 4
"""Of all workloads: other programs slow the machine for minutes, and the fastest round counts."""
REPEATS, WARM, STEPS, OVERHEADS = 2, 4, 5, 7
USUAL = 0.2
"""Quantile of repeated steps and units: other programs only make them longer."""
LEAST_SHARE = 2e-5
"""Of a workload's time: functions below it in all workloads are left out."""

Name = tuple[str, str]
Costs = dict[Name, Fitted]
OF_NODES: Name = ("<autograd>", "node")


class Profiled(NamedTuple):
    """A step, in nanoseconds."""

    workload: workloads.Workload
    plain: float
    """All of its CPU time, without the profiler."""
    samples: Any
    """Of one step; `ns` without the profiler's part."""
    operators: float
    """All operators, with their arguments and results."""


class Unit:
    """The time of a call of a usual Python function, as `zerokit calibrate` measures it."""

    def __init__(self) -> None:
        self._programs = [(program, count_calls(program)) for program in programs()]
        self._measured: list[float] = []

    def measure(self) -> None:
        """Measure it now: other programs on the machine change it."""
        times = [seconds_of(program, time.thread_time, statistics.median) / calls for program, calls in self._programs]
        self._measured.append(1e9 * statistics.median(times))

    @property
    def ns(self) -> float:
        """Nanoseconds, of all measurements."""
        return float(np.quantile(self._measured, USUAL))


def is_known_package(name: Name) -> bool:
    """Whether a function is a library's, not a workload's or the profiler's."""
    return not name[0].startswith(("/", "<", "tools/"))


def profiled(workload: workloads.Workload, profiler: Profiler, overhead: Overhead, unit: Unit) -> Profiled:
    """Profile a workload, whose steps always do the same."""
    plain, found = [], []
    with workloads.step_of(workload) as step, paused_collection():
        for _ in range(REPEATS):
            unit.measure()
            # Python adapts its code to the profiler, and back.
            for _ in range(WARM):
                step()
            for _ in range(STEPS):
                begin = time.thread_time_ns()
                step()
                plain.append(time.thread_time_ns() - begin)
            found += [profiler.samples(step) for _ in range(STEPS)][1:]
    samples = undisturbed([{name: one[name] for name in SAMPLED} for one in found])
    ns, operators, whole = parts_of(samples, overhead)
    # With the profiler code runs slower, also where it adds nothing.
    usual = float(np.quantile(plain, USUAL))
    return Profiled(workload, usual, samples | {"ns": ns * usual / whole}, operators * usual / whole)


def parts_of(samples: Any, overhead: Overhead) -> tuple[Any, float, float]:
    """Nanoseconds of samples, of all operators with their arguments and results, and of the step."""
    ns, code = own_ns(samples, overhead), samples["code"]
    binding = overhead.binding * samples["operators"][code >= 0].sum()
    return ns, float(ns[code == OPERATOR].sum() + binding), float(ns.sum() + binding)


def own_ns(samples: Any, overhead: Overhead) -> Any:
    """Nanoseconds of samples without the profiler's part."""
    is_node = samples["code"] == NODE
    # Python gives no arguments to nodes, nor to the operators of one.
    of_operator = overhead.operator - overhead.binding * is_node
    own = samples["ns"] - samples["frames"] * overhead.frame - samples["operators"] * of_operator
    return own - is_node * (overhead.operator - overhead.binding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--workloads", type=int, nargs="+", metavar="PLACE", help="some of them, not to be written")
    options = parser.parse_args()
    workloads.prepare_process()
    unit, profiler = Unit(), Profiler()
    overhead = measured_overhead(profiler)
    print(overhead, file=sys.stderr)
    chosen = list(workloads.workloads())
    if options.workloads:
        chosen = [chosen[place] for place in options.workloads]
    fastest: dict[workloads.Workload, Profiled] = {}
    for _, workload in itertools.product(range(ROUNDS), chosen):
        step = profiled(workload, profiler, overhead, unit)
        print(f"{step.plain:9.0f} ns, unit {unit.ns:.0f}  {workload}", file=sys.stderr, flush=True)
        fastest[workload] = min(fastest.get(workload, step), step, key=lambda one: one.plain)
    steps, ns = list(fastest.values()), unit.ns
    parts, shares = by_function(steps, [function_name(code) for code in profiler.codes()], ns)
    passes = sizes_of_passes(steps, ns)
    caches, costs = fit_all({name: groups(joined(found)) for name, found in parts.items()}, passes)
    if options.show:
        show(costs, caches, passes, steps, parts, ns)
    launch = figures()["launch"]["seconds"]
    node = costs.pop(OF_NODES)
    # Its frames are hooks, which the clock sees as called by the function that runs the pass.
    costs[PASS] = costs[PASS]._replace(frame=node.frame)
    kept = {name: cost for name, cost in costs.items() if is_known_package(name) and shares[name] >= LEAST_SHARE}
    head = {
        "kinds": {kind: row_of(cost) for kind, cost in costs_of_kinds(parts, caches, passes).items()},
        **{key: [round(float(factor), 3) for factor in factors] for key, factors in caches._asdict().items()},
        "node": round(max(node.call + node.operator - launch["node_run"] / launch["python_call"], 0.0), 2),
    }
    print(f"{len(kept)} of {len(costs)} functions; unit {ns:.0f} ns; {head}")
    if not options.workloads:
        WRITTEN.write_text(written(kept, head), encoding="utf-8")


def measured_overhead(profiler: Profiler) -> Overhead:
    """In nanoseconds."""
    return Overhead(*map(float, np.median([profiler.overhead() for _ in range(OVERHEADS)], axis=0)))


Parts = dict[Name, list[dict[str, Any]]]
"""Samples of each function, by step, with `units` and the number of the step."""


def by_function(steps: Sequence[Profiled], names: Sequence[Name], ns: float) -> tuple[Parts, dict[Name, float]]:
    """The samples of each function, and the most that it takes of a step; `ns`: of a unit."""
    parts: Parts = defaultdict(list)
    shares: dict[Name, float] = defaultdict(float)
    for number, step in enumerate(steps):
        samples = step.samples
        for places in by_code(samples["code"]):
            code = samples["code"][places[0]]
            if code == OPERATOR:
                continue
            name = OF_NODES if code == NODE else names[code]
            found = {key: samples[key][places] for key in ("distance", "frames", "operators")}
            if name == PASS:  # what it calls are nodes
                found |= {key: np.zeros_like(found[key]) for key in ("frames", "operators")}
            of_step = {"step": np.full(len(places), number)}
            parts[name].append(found | of_step | {"units": samples["ns"][places] / ns})
            shares[name] = max(shares[name], samples["ns"][places].sum() / step.plain)
    return parts, shares


def sizes_of_passes(steps: Sequence[Profiled], ns: float) -> Any:
    """Of each step the place of its passes in the table's factors, as of native/host_work.cpp."""
    python = np.array([step.plain - step.operators for step in steps]) / ns
    passes = python / [step.workload.accumulation for step in steps]
    return places_of(np.floor(passes / SMALLEST_PASS), SIZES)


def by_code(codes: Any) -> list[Any]:
    """The places of each code."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def joined(parts: list[Any]) -> dict[str, Any]:
    """Samples of several steps as one."""
    return {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}


def costs_of_kinds(parts: Parts, caches: Caches, passes: Any) -> dict[Kind, Fitted]:
    """One cost for all functions of a kind, by their calls; those of the workloads are as a script's."""
    of_kinds: dict[Kind, list[Any]] = {kind: [] for kind in get_args(Kind)}
    for name, found in parts.items():
        if name not in (PASS, OF_NODES):
            of_kinds[kind_of(*name)] += found
    return {kind: fit(groups(joined(found)), caches, passes) for kind, found in of_kinds.items()}


def show(costs: Costs, caches: Caches, passes: Any, steps: Sequence[Profiled], parts: Parts, ns: float) -> None:
    """What the table and operators explain of each workload's time, and which functions take most."""
    plain = np.array([step.plain for step in steps])
    spent: dict[Name, float] = {}
    functions = np.zeros(len(steps))
    for name, found in parts.items():
        observed = groups(joined(found))
        units, places = explained_units(observed, costs[name], caches, passes), [one.step for one in observed]
        np.add.at(functions, places, units * ns)
        spent[name] = float((units * ns / plain[places]).sum())
    for step, explained in zip(steps, functions, strict=True):
        operators = step.operators / step.plain
        whole = explained / step.plain + operators
        print(f"{step.plain / ns:9.0f} units, explained {whole:.0%}, operators {operators:.0%}  {step.workload}")
    for name, share in sorted(spent.items(), key=lambda one: -one[1])[:60]:
        row = " + ".join(f"{part:6.2f}" for part in costs[name])
        print(f"{share / len(steps):6.2%}  {row}  {':'.join(name)}")


def written(costs: Costs, head: dict[str, Any]) -> str:
    """The file: a line for each function."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    source = f"python -m tools.host_costs, on one CPU rank: {versions}, Python {platform.python_version()}"
    files: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for (path, function), cost in sorted(costs.items()):
        files[path][function] = row_of(cost)
    lines = [
        f"  {json.dumps(path)}: {{\n"
        + ",\n".join(f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in functions.items())
        + "\n  }"
        for path, functions in files.items()
    ]
    first = "".join(
        f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in ({"source": source} | head).items()
    )
    return f'{{\n{first} "functions": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def row_of(cost: Fitted) -> list[float]:
    """As the file has it."""
    return [round(part, 2) for part in cost]


if __name__ == "__main__":
    main()

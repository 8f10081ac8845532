"""Writes ``zerokit/hardware/costs/python_calls.json``: ``python -m tools.host_costs``.

Each workload is profiled for a few steps, beside the unit, the call of a usual Python function. ``--show`` prints
what the table explains of each workload's time without the profiler, and the functions that take most.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from tools.host_costs import workloads
from tools.host_costs.fit import Fitted, fit, groups, undisturbed, with_nodes
from tools.host_costs.profiler import NODE, OPERATOR, Overhead, Profiler
from zerokit.calibration.host import count_calls, programs
from zerokit.calibration.seconds import seconds_of
from zerokit.garbage import paused_collection
from zerokit.hardware.costs import python_calls
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.python_calls import Kind, function_name, kind_of

WRITTEN = Path(python_calls.__file__).with_suffix(".json")
PACKAGES = ("deepspeed", "torch", "accelerate", "transformers")
WARM, STEPS, OVERHEADS = 4, 7, 7
LEAST_SHARE = 2e-5
"""Of a workload's time: functions below it in all workloads are left out."""

Name = tuple[str, str]
Costs = dict[Name, Fitted]
ENGINE: Name = ("torch/autograd/graph.py", "_engine_run_backward")
OF_NODES: Name = ("<autograd>", "node")


class Profiled(NamedTuple):
    """A step."""

    workload: workloads.Workload
    units: float
    """All of its CPU time, without the profiler."""
    counted: dict[Name, Any]
    """Calls of each function, and the frames, operators and nodes that they called."""
    operators: float
    """Units of all operators."""


class Unit:
    """The time of a call of a usual Python function, as `zerokit calibrate` measures it."""

    def __init__(self) -> None:
        self._programs = [(program, count_calls(program)) for program in programs()]

    def ns(self) -> float:
        """Now: other programs on the machine change it."""
        times = [seconds_of(program, time.thread_time, statistics.median) / calls for program, calls in self._programs]
        return 1e9 * statistics.median(times)


def is_known_package(name: Name) -> bool:
    """Whether a function is a library's, not a workload's or the profiler's."""
    return not name[0].startswith(("/", "<", "tools/"))


class Repeated(NamedTuple):
    """A step that was profiled several times."""

    plain: float
    """Units without the profiler."""
    samples: dict[str, Any]
    """Of one step, with `units` without the profiler's part."""


def repeated(step: workloads.Step, profiler: Profiler, unit: Unit, overhead: Overhead) -> Repeated:
    """Profile a step that always does the same."""
    plain, found = [], []
    with paused_collection():
        profiler.samples(step)
        for _ in range(STEPS):
            ns = unit.ns()
            begin = time.thread_time_ns()
            step()
            plain.append((time.thread_time_ns() - begin) / ns)
            samples = profiler.samples(step)
            counts = {key: samples[key] for key in ("code", "frames", "operators", "nodes")}
            found.append(counts | {"units": own_units(samples, ns, overhead)})
    return Repeated(statistics.median(plain), undisturbed(found))


def own_units(samples: Any, ns: float, overhead: Overhead) -> Any:
    """Units of samples without the profiler's part; `ns`: of a unit."""
    # Python gives no arguments to the operators of a node.
    of_operator = overhead.operator - overhead.binding * (samples["code"] == NODE)
    own = samples["ns"] / ns - samples["frames"] * overhead.frame - samples["operators"] * of_operator
    return own - samples["nodes"] * (overhead.operator - overhead.binding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--workloads", type=int, nargs="+", metavar="PLACE", help="some of them, not to be written")
    options = parser.parse_args()
    workloads.prepare_process()
    unit, profiler = Unit(), Profiler()
    overhead = measured_overhead(unit, profiler)
    print(overhead)
    chosen = list(workloads.workloads())
    if options.workloads:
        chosen = [chosen[place] for place in options.workloads]
    parts: dict[Name, list[Any]] = defaultdict(list)
    shares: dict[Name, float] = defaultdict(float)
    steps: list[Profiled] = []
    for workload in chosen:
        with workloads.step_of(workload) as step:
            for _ in range(WARM):
                step()
            found = repeated(step, profiler, unit, overhead)
        names = [function_name(code) for code in profiler.codes()]
        samples = found.samples
        counted: dict[Name, Any] = {}
        operators = 0.0
        for places in by_code(samples["code"]):
            code = samples["code"][places[0]]
            if code == OPERATOR:
                operators = samples["units"][places].sum()
                continue
            name = OF_NODES if code == NODE else names[code]
            parts[name].append({key: samples[key][places] for key in ("frames", "operators", "nodes", "units")})
            calls = [samples[key][places].sum() for key in ("frames", "operators", "nodes")]
            counted[name] = counted.get(name, 0) + np.array([len(places), *calls])
            shares[name] = max(shares[name], samples["units"][places].sum() / found.plain)
        operators += overhead.binding * samples["operators"][samples["code"] >= 0].sum()
        steps.append(Profiled(workload, found.plain, counted, operators))
        explained = (operators + samples["units"][samples["code"] != OPERATOR].sum()) / found.plain
        print(f"{workload}: {found.plain:.0f} units, {explained:.0%} in samples", file=sys.stderr, flush=True)
    costs = {name: fit(groups(joined(found))) for name, found in parts.items()}
    if options.show:
        show(costs, steps)
    launch = figures()["launch"]["seconds"]
    costs[ENGINE] = with_nodes(costs[ENGINE], costs.pop(OF_NODES), launch["node_run"] / launch["python_call"])
    kept = {name: cost for name, cost in costs.items() if is_known_package(name) and shares[name] >= LEAST_SHARE}
    kinds = costs_of_kinds(parts)
    print(f"{len(kept)} of {len(costs)} functions; {kinds}")
    if not options.workloads:
        WRITTEN.write_text(table(kept, kinds), encoding="utf-8")


def measured_overhead(unit: Unit, profiler: Profiler) -> Overhead:
    """In units."""
    found = []
    for _ in range(OVERHEADS):
        ns = unit.ns()
        found.append([part / ns for part in profiler.overhead()])
    return Overhead(*map(float, np.median(found, axis=0)))


def by_code(codes: Any) -> list[Any]:
    """The places of each code."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def joined(parts: list[Any]) -> dict[str, Any]:
    """Samples of several steps as one."""
    return {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}


def total(costs: Costs, step: Profiled) -> float:
    """Units of all frames of a step by the table."""
    return sum(float(counted @ costs[name]) for name, counted in step.counted.items())


def costs_of_kinds(parts: dict[Name, list[Any]]) -> dict[Kind, Fitted]:
    """One cost for all functions of a kind, by their calls; those of the workloads are as a script's."""
    of_kinds: dict[Kind, list[Any]] = {kind: [] for kind in get_args(Kind)}
    for name, found in parts.items():
        if name not in (ENGINE, OF_NODES):
            of_kinds[kind_of(*name)] += found
    return {kind: fit(groups(joined(found))) for kind, found in of_kinds.items()}


def show(costs: Costs, steps: list[Profiled]) -> None:
    """What the table, operators and nodes explain of each workload's time."""
    rows = defaultdict(list)
    for step in steps:
        rows[step.workload].append((step.units, total(costs, step), step.operators))
    for workload, found in rows.items():
        whole, functions, operators = np.median(found, axis=0)
        print(f"{whole:9.0f} units, functions {functions / whole:.0%}, operators {operators / whole:.0%}  {workload}")
    spent: dict[Name, float] = defaultdict(float)
    for step in steps:
        for name, counted in step.counted.items():
            spent[name] += float(counted @ costs[name]) / step.units
    for name, share in sorted(spent.items(), key=lambda one: -one[1])[:60]:
        parts = " + ".join(f"{part:6.2f}" for part in costs[name])
        print(f"{share / len(steps):6.2%}  {parts}  {':'.join(name)}")


def table(costs: Costs, kinds: dict[Kind, Fitted]) -> str:
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
    rows = json.dumps({kind: row_of(cost) for kind, cost in kinds.items()})
    head = f' "source": {json.dumps(source)},\n "kinds": {rows},\n'
    return f'{{\n{head} "functions": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def row_of(cost: Fitted) -> list[float]:
    """As the file has it."""
    return [round(part, 2) for part in cost[:3]]


if __name__ == "__main__":
    main()

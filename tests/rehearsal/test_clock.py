"""Virtual time: streams and events against another simulation, and a step of ZeRO-3 worked out on paper."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests import processes
from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY
from zerokit.hardware.costs import python_calls
from zerokit.hardware.costs.python_calls import functions
from zerokit.rehearsal.native.clock import FIRST_COMMUNICATOR, FIRST_DRIVE, HOST_STREAM, WorkKind
from zerokit.rehearsal.native.together import Played
from zerokit.rehearsal.ranks.roles import Axis, Roles, find_roles
from zerokit.rehearsal.recording import SPAN
from zerokit.rehearsal.report.step_time import HOST_WORK, breakdown, critical_path
from zerokit.rehearsal.timing.play_together import matched
from zerokit.rehearsal.timing.rank_time import Meetings, RankTime
from zerokit.rehearsal.watching.steps import Steps
from zerokit.rehearsal.watching.watcher import Events, StepEnd, Watcher
from zerokit.tables import table_of


def test_streams_and_events_take_the_time_of_an_independent_simulation() -> None:
    command = [sys.executable, "-m", "tests.validation.rehearsal.clock_programs", "400", "3"]
    environment = os.environ | {"CUDA_LAUNCH_BLOCKING": "0"}
    tried, waits, slowed = map(
        int, processes.checked(command, cwd=REPOSITORY, env=environment).splitlines()[-1].split()
    )
    assert tried >= 300
    assert waits >= 30
    assert slowed >= 30


def test_blocked_launches_take_the_time_of_an_independent_simulation() -> None:
    command = [sys.executable, "-m", "tests.validation.rehearsal.clock_programs", "200", "3"]
    environment = os.environ | {"CUDA_LAUNCH_BLOCKING": "1"}
    tried, waits, _ = map(int, processes.checked(command, cwd=REPOSITORY, env=environment).splitlines()[-1].split())
    assert tried >= 150
    assert waits >= 15


def test_a_collective_takes_its_host_longer_than_a_kernel() -> None:
    rank = mock.MagicMock(_gpus_per_node=8)
    rank.costs.collective_launch.return_value = 89e-6
    rank._collective_cost.return_value = [1_000_000]
    RankTime.collective(rank, "all_gather", 8, (0, 1), 5, ("group", "both"))
    assert rank.clock.advance.call_args_list == [mock.call(89_000)]


def test_numbers_of_streams_and_of_work_are_those_of_the_clock_itself() -> None:
    header = (REPOSITORY / "zerokit/rehearsal/native/streams.h").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"constexpr int (k\w+) = (-?\d+);", header))
    ours = {"kHost": HOST_STREAM, "kFirstDrive": FIRST_DRIVE, "kFirstCommunicator": FIRST_COMMUNICATOR}
    assert {name: int(number) for name, number in numbers.items()} == ours
    kinds = header.partition("enum class WorkKind")[2].partition("};")[0]
    found = {name.upper(): int(number) for name, number in re.findall(r"(\w+) = (\d+),", kinds)}
    assert found == {kind.name: kind.value for kind in WorkKind}


@functools.cache
def timelines() -> dict[str, Any]:
    """Of tests/validation/rehearsal/clock_timeline.py."""
    command = [sys.executable, "-m", "tests.validation.rehearsal.clock_timeline"]
    found: dict[str, Any] = json.loads(processes.checked(command, cwd=REPOSITORY).splitlines()[-1])
    return found


PRODUCTS = 10 * (4 + 7)
"""Milliseconds of matrix products: backward has two for each layer, but one for the first."""


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        # Gathers and reductions run on the default stream: every one of four and four in turn is waited for.
        ("False 0", 4 * (4 + 10), 4 * 4 + 70 + 4 * 4),
        # The model itself has all four weights gathered at once before its first layer. They stay, but
        # for the first one's, which is gathered again beside the second layer's product.
        ("False 4", 4 * 4 + 4 * 10, 70 + 4 * 4),
        # The host waits after each layer of the forward pass, but not in the backward pass: there only
        # the first gather and the last reduction have nothing to hide behind.
        ("True 0", 4 * (4 + 10), 4 + 70 + 4),
        ("True 4", 4 * 4 + 4 * 10, 70 + 4),
    ],
)
def test_zero_3_hides_the_gathers_and_reductions_that_its_events_allow(case: str, forward: int, backward: int) -> None:
    step = timelines()[case]
    assert round(step["forward"], 2) == forward
    assert round(step["all"], 2) == forward + backward
    parts = {name: round(1000 * seconds, 2) for name, seconds in step["breakdown"].items()}
    assert (parts["compute"], parts["communication"]) == (PRODUCTS, forward + backward - PRODUCTS)
    assert sum(step["breakdown"].values()) * 1000 == pytest.approx(step["all"])


def test_the_same_step_takes_the_same_nanoseconds() -> None:
    assert timelines()["again"] == timelines()["True 4"]
    assert len(timelines()["again"]["work"]) > 10


@pytest.mark.parametrize(
    ("call", "costs"),
    [
        ("product", [["matmul", 64, 16, 32, 1, "bfloat16", "NN"]]),
        ("product by a transposed", [["matmul", 64, 48, 32, 1, "bfloat16", "TN"]]),
        ("product into nothing yet", [["matmul", 7, 11, 9, 1, "bfloat16", "NN"]]),
        ("sum into nothing yet", [["memory_bound", 3 * 80, "aten::add"]]),
        ("in fp32", [["matmul", 8, 32, 16, 1, "float32", "NN"]]),
        ("in TF32", [["matmul", 8, 24, 16, 1, "tf32", "NN"]]),
        ("attention", [["attention", "cudnn", False, 2, 4, 4, 32, 48, 64, False, "bfloat16", None]]),
        # Each of the input's 2 x 10 x 10 places, its 6 channels into 4 of 3 x 3 places.
        ("transposed convolution", [["matmul", 200, 36, 6, 1, "bfloat16", "NN"]]),
        ("to the device", [["copy", "h2d", 4 * 130, False, 8]]),
        ("to the device, converted", [["copy", "h2d", 2 * 128, False, 8], ["on_host", 6 * 128, None]]),
        ("to the device, converted there", [["copy", "h2d", 4 * 132, True, 8], ["memory_bound", 6 * 132]]),
        ("to the host, converted", [["copy", "d2h", 2 * 128, False, 8], ["on_host", 6 * 128, None]]),
        # Numbers come as tensors of one element in 64 bits.
        ("unscaled on the host", [["on_host", 8 * 300_000 + 8, None]]),
        ("norm on the host", [["on_host", 4 * 310_000 + 4, None]]),
        ("cast on the host", [["on_host", 6 * 320_000, None]]),
        ("copied on the host", [["on_host", 8 * 330_000, None]]),
        ("seen otherwise on the host", []),
        ("on the host, by zerokit", []),
        ("by the script's threads", [["on_host", 8 * 360_000, 3]]),
        ("once more, by the script's threads", [["on_host", 8 * 300_000 + 8, 3]]),
        ("beside a loader's thread", [["on_host", 8 * 370_000, 3]]),
        ("reduce", [["collective", "broadcast", 200, 8, 1]]),
        ("gather", [["collective", "all_gather", 1600, 8, 1]]),
        ("norm", [["memory_bound", 2 * (2 * 32 * 64 + 64), "layer_norm_fwd"]]),
        ("rotary", [["memory_bound", 2 * 2 * 8 * 2 * 16, "rotary"]]),
        ("quantizer", [["memory_bound", 2 * 256 + 256 + 4 * 4, "quantize"]]),
    ],
)
def test_a_call_asks_for_the_costs_of_what_it_does(call: str, costs: list[Any]) -> None:
    assert timelines()["asked"][call] == costs


def test_a_step_with_adam_on_the_host_unscales_updates_and_casts_there() -> None:
    own = 1000 * 1000 // 8
    # By a number in fp32; what the device gets back is made in bf16 on the host.
    assert timelines()["offloaded"] == [
        ["on_host", 8 * own + 4, None],
        ["cpu_adam", own, "float32", None],
        ["on_host", 6 * own, None],
    ]


def test_a_rank_that_takes_all_cores_has_as_many_threads() -> None:
    # Whose number nobody knows here; the script had asked for three.
    assert timelines()["asked"]["with all cores"] is None


def test_kernels_that_tell_no_sizes_are_named() -> None:
    assert timelines()["asked"]["without_cost"] == ["kernels of bitsandbytes"]


def test_kernels_that_inductor_writes_take_the_time_of_what_they_move() -> None:
    pointwise, lookup, softmax, in_place, _ = timelines()["compiled"]
    assert pointwise == [[2 * 4 * 1000, "triton_poi"]]
    # Three rows of the table, not all of it, three numbers that say which, and what comes out.
    assert lookup == [[2 * 4 * 3 * 16 + 3 * 8, "triton_poi"]]
    assert softmax == [[2 * 4 * 64 * 512, "triton_per"]]
    assert sum(num_bytes for num_bytes, _ in in_place) == 2 * 4 * 300
    # What is more than that is told to be missing.
    assert len(timelines()["templates"]) == 1


def test_calls_of_python_and_nodes_of_autograd_take_the_host_s_time() -> None:
    # Nanoseconds of a call, and of each callee; a function's callees are paid for as they are called.
    kinds = table_of(python_calls.__file__)["kinds"]
    (call, callee, _), engine = ([round(1000 * part) for part in kinds[kind]] for kind in ("others", "deepspeed"))
    # A function of the table: its call, its one callee and its one operator.
    measured = functions()["deepspeed/utils/nvtx.py"]["instrument_w_nvtx.<locals>.wrapped_fn"]
    three_leaves = 3 * (call + callee)
    # A function that is new is cold: many others ran before.
    new = 2 * call
    # The sum, the product; backwards both, and what adds up the gradient.
    assert timelines()["host work"] == {
        "nodes made": 2,
        "nodes run": 3,
        "on the host": 4_000_008,
        "on the host, in a thread": 0,
        # One before and one after; the two in between take no time, then or later.
        "untimed nodes": 2,
        "uncounted nodes": 2,
        "a product of the processor's": 10_000_000,
        "four calls": new + call + three_leaves,
        # The lambda, and what zerokit calls calls three times; not zerokit itself, nor what it calls.
        "by zerokit": new + three_leaves,
        # The lambda, the script's function, and what it calls: its folder only begins as zerokit's.
        "beside zerokit": new + (new + callee) + (call + callee) + three_leaves,
        "by DeepSpeed": new + callee + 2 * engine[0] + engine[1] + call + three_leaves,
        "by a measured function": sum(round(1000 * part) for part in (measured[0], *measured)) + call + three_leaves,
        # The script's threads beside its own take no time of it; what starts them was free when it was first called.
        "in a thread": new + callee,
        # It calls two functions of the context before time stops, which were free, too.
        "untimed": new + 2 * callee,
        # zerokit names what the engine holds.
        "labels": new,
        # A library's module and what it calls take none.
        "an import": new,
        # More than any cache of recent ones holds; the two functions were called again since.
        "after many functions": call + three_leaves,
    }


TRAINING = """
import torch

weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=1.0)
for _ in range(3):
    weight.mul(2).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("place", ["here", "lib/python3.11/site-packages"])
def test_a_module_of_a_library_that_is_run_takes_the_time_of_a_script(place: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "training.py").write_text(TRAINING)
    (tmp_path / "train.py").write_text(TRAINING)
    options = ("--num-gpus", 1, "--gpu", "H100-SXM", "--time", "--format", "json")
    variables = {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(tmp_path / place)))}

    def seconds(*words: str) -> float:
        done = rehearse(*options, *words, cwd=tmp_path, forked=True, variables=variables)
        return float(done.report["time"]["step_seconds"])

    assert seconds("-m", "training") == seconds("train.py") > 0


def test_drives_work_beside_the_host_until_it_waits() -> None:
    seen = timelines()["drives"]
    # The device, which torch.cuda.synchronize waits for, knows nothing of drives.
    times = ("asked for", "synchronized", "written", "read", "step")
    assert [round(seen[at], 2) for at in times] == [0, 0, 2, 3, 4]
    assert seen["copies"] == [["copy", f"nvme_{kind}", 2048, True, 8] for kind in ("write", "write", "read")]


def test_loops_that_ask_for_an_event_come_to_their_end() -> None:
    assert all(1000 < rounds < 20_000 for rounds in timelines()["polling"].values())


def test_what_checkpointing_computes_again_is_counted_apart() -> None:
    again = 2 * 16 * 24 * 32
    seen = timelines()["recomputed"]
    assert seen["operator"] == {"forward": [again, 0], "backward": [2 * again, again]}
    assert seen["Function"] == seen["operator"]


def model_flops(parts: Sequence[Mapping[str, int]], *, has_engine: bool) -> list[float]:
    """Of steps with so many operations in each phase; "again": of backward, what is computed again."""
    done: Counter[str] = Counter()
    backend, recomputing = mock.Mock(), mock.Mock()
    backend.flops_of.side_effect = done.__getitem__
    events, traffic = mock.Mock(has_engine=has_engine), mock.Mock(calls=[])
    steps = Steps(backend, events, traffic, recomputing, time=None, last=0)
    for part in parts:
        done.update(part)
        recomputing.flops = done["again"]
        backend.flops = done.total() - done["again"]
        steps._end()
    return steps.model_flops


def test_frozen_parameters_are_no_work_of_the_model() -> None:
    steps = [
        {"forward": 10, "backward": backward, "again": again}
        for backward, again in ((20, 0), (30, 10), (20, 10), (26, 0))
    ]
    assert model_flops(steps, has_engine=True) == [30, 30, 20, 30]


def test_without_an_engine_all_but_backward_and_step_is_forward() -> None:
    steps = [{"init": 10, "backward": 30, "step": 5, "again": 10}, {"between": 10, "backward": 20, "step": 5}]
    assert model_flops(steps, has_engine=False) == [30, 30]
    assert model_flops(steps, has_engine=True) == [0, 0]


def test_the_clocks_of_a_script_go_by_virtual_time() -> None:
    seen = timelines()["clocks"]
    assert seen["event"] == 3.0
    assert seen["before the host waits"] < 0.1
    dates = ("datetime", "datetime in UTC", "utcnow", "a class of dates", "tqdm", "timeit")
    for clock in ("perf_counter", "monotonic_ns", "time", *dates):
        assert 3.0 <= seen[clock] < 3.1
    for timed in ("timeit.timeit", "timeit.repeat", "timeit.Timer"):
        assert 2.0 <= seen[timed] < 2.1
    number, taken = seen["autorange"]
    assert 0.2 <= taken < 0.5
    for once in (taken / number, seen["a short statement"] / 1000, seen["torch's autorange"]):
        assert 1e-7 <= once < 2e-7
    assert seen["utcnow of something"] == "refused"
    assert 0.001 <= seen["sleep"] < 0.0011
    assert 0 <= seen["a bar in a thread"] < 0.1
    assert seen["5,000 looks in a thread"] < 0.01
    for real in ("a thread", "zerokit.distributed.stuck"):
        assert seen[f"behind in {real}"] > 5000
    for script in ("zerokit.training.progress", "zerokit.generation.main"):  # which print their speed
        assert abs(seen[f"behind in {script}"]) < 0.1
    assert seen["the date is that of time"] < 0.001
    for now in ("localtime", "gmtime", "ctime", "asctime", "strftime", "today"):
        assert 0 <= seen[f"behind by {now}"] < 1.1  # none but the last has fractions of a second
    assert seen["dates that are given"] == ["1970", "Thu Jan  1 00:00:00 1970"]
    assert seen["a converter"] == 1970
    assert abs(seen["behind by an attribute"]) < 0.1


Work = tuple[int, int, int, WorkKind, int]
"""Begin, end, stream, kind and name."""


def path_of(work: Sequence[Work], begin: int, end: int) -> list[Any]:
    names = ("aten::mm", "all_gather", "cudaMalloc")
    spans = np.array([(start, over, name, 0, stream, kind, 0) for start, over, stream, kind, name in work], SPAN)
    path = critical_path(spans, names, begin, end)
    return [(one.name, round(one.seconds * 1e9), one.count) for one in path]


def test_the_critical_path_goes_back_to_what_each_had_to_wait_for() -> None:
    path = path_of(
        [
            (0, 10, 0, WorkKind.KERNEL, 0),
            (10, 30, 1001, WorkKind.COLLECTIVE, 1),
            (10, 25, 0, WorkKind.KERNEL, 0),
            (30, 40, 1001, WorkKind.MEETING, 1),
            (2, 40, HOST_STREAM, WorkKind.WAITING, 0),
            (45, 60, 0, WorkKind.KERNEL, 0),
            (46, 60, HOST_STREAM, WorkKind.WAITING, 0),
        ],
        2,
        60,
    )
    assert path == [
        ("aten::mm", 15 + 8, 2),
        ("all_gather", 20, 1),
        ("other ranks, for all_gather", 10, 1),
        (HOST_WORK, 5, 1),
    ]


def test_the_critical_path_of_a_step_that_the_host_launches_too_slowly_is_the_host_s() -> None:
    # Each kernel is over before the host has launched the next one, until one that the host waits for.
    path = path_of(
        [
            (0, 20, 0, WorkKind.KERNEL, 0),
            (5, 20, HOST_STREAM, WorkKind.WAITING, 0),
            (27, 29, 0, WorkKind.KERNEL, 0),
            (30, 33, HOST_STREAM, WorkKind.RESERVING, 2),
            (34, 36, 0, WorkKind.KERNEL, 0),
            (41, 43, 0, WorkKind.KERNEL, 0),
        ],
        1,
        43,
    )
    assert path == [("aten::mm", 2 + 19, 2), (HOST_WORK, 8 + 10, 2), ("cudaMalloc", 3, 1)]


def test_each_moment_of_a_step_counts_once() -> None:
    work = [
        (0, 10, 0, WorkKind.KERNEL),
        (5, 20, 1001, WorkKind.COLLECTIVE),
        (15, 41, 3, WorkKind.COPY),
        (18, 39, HOST_STREAM, WorkKind.OPTIMIZER),
        (38, 41, HOST_STREAM, WorkKind.HOST_OPERATOR),
        (0, 60, HOST_STREAM, WorkKind.WAITING),
        (43, 48, 1001, WorkKind.MEETING),
        (50, 90, 0, WorkKind.KERNEL),
    ]
    spans = np.array([(begin, end, 0, 0, stream, kind, 0) for begin, end, stream, kind in work], SPAN)
    parts = breakdown(spans, 2, 60)
    nanoseconds = {name: round(seconds * 1e9) for name, seconds in parts.model_dump().items()}
    assert nanoseconds == {
        "compute": 8 + 10,
        "host_optimizer": 21,
        "host_operators": 2,
        "communication": 8,
        "copies": 0,
        "other_ranks": 5,
        "launch": 4,
    }


# ---- ranks that wait for each other


@pytest.mark.rehearsal
def test_ranks_wait_for_each_other_as_in_an_independent_simulation() -> None:
    command = [sys.executable, "-m", "tests.validation.rehearsal.together_programs", "200", "3"]
    tried, waited, stuck = map(int, processes.checked(command, cwd=REPOSITORY).splitlines()[-1].split())
    assert tried >= 40
    assert waited >= 15
    assert stuck >= 1


@pytest.mark.rehearsal
def test_the_bubble_of_a_pipeline_is_in_its_step(tmp_path: Path) -> None:
    """Of p equal stages with m micro-batches, each stage waits (p - 1) / m of what it computes."""
    options = ["--num-gpus", 4, "--gpu", "H100", "--time", "--steps", 2, "--scan", 0, "--no-advise"]
    done = rehearse(*options, "--format", "json", SCRIPTS / "equal_stages.py", 4, 8, cwd=tmp_path, forked=True)
    time, parts = done.report["time"], done.report["time"]["breakdown"]
    waits = parts["other_ranks"] + parts["communication"]
    # A little more: what the stages send each other, and the clipping of gradients.
    assert 3 / 8 < waits / parts["compute"] < 3 / 8 + 0.03
    assert sum(parts.values()) == pytest.approx(time["step_seconds"])
    assert time["critical_path"][0]["name"] == "aten::mm"
    assert sum("clocks that the script sees" in line for line in done.report["warnings"]) == 1


def test_what_ranks_do_together_has_one_number_on_all_of_them() -> None:
    roles = Roles(("first", "last"), (0, 0, 1, 1), (0, 3))
    first, last = Meetings(), Meetings()
    assert [first.come(("group", "all")), first.come(("pair", "0", "2", "7"))] == [0, 1]
    assert [first.come(("group", "all")), first.come(("group", "alone"))] == [2, 3]
    # Rank 3 hears rank 1, for which rank 0 stands, as rank 3 does for rank 2.
    for meeting in (("pair", "1", "3", "7"), ("group", "all"), ("pair", "3", "1", "7")):
        last.come(meeting)
    numbers, sizes = matched([first.all, last.all], roles)
    assert numbers[0][3] == numbers[1][2] == -1
    assert numbers[0][1] == numbers[1][0]
    assert numbers[0][0] == numbers[1][1] != numbers[0][2]
    assert numbers[0][2] == -1  # the last rank does not come a second time
    assert [sizes[number] for number in numbers[1][:2]] == [2, 2]


def test_a_rank_that_stands_for_both_ends_meets_nobody() -> None:
    roles = find_roles(16, [Axis("pipeline", (tuple(range(16)),))])
    assert len(roles.rehearsed) < 16
    here = next(rank for rank in roles.rehearsed if roles.stands_for(rank + 1) == rank)
    own, other = Meetings(), Meetings()
    own.come(("pair", str(here), str(here + 1), "0"))
    own.come(("pair", str(here + 1), str(here), "0"))
    own.come(("group", "all"))
    other.come(("group", "all"))
    numbers, sizes = matched([own.all, other.all], roles)
    assert numbers[0][:2] == [-1, -1]
    assert sizes[numbers[0][2]] == 2


def test_where_a_host_was_by_itself_is_told_in_the_time_of_all() -> None:
    played = Played(np.zeros(0), np.zeros(0), np.array([[10, 15], [20, 40], [20, 41]]), 0)
    assert played.time_of_host(np.array([3, 10, 12, 20, 30])).tolist() == [3, 15, 17, 41, 51]


# ---- the events of a run


class Noting(Watcher):
    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen

    def on_engine_begin(self, model: Any) -> None:
        self._seen.append(f"{self._name} begin {model}")

    def on_engine_end(self, engine: Any) -> None:
        self._seen.append(f"{self._name} end {engine}")

    def on_step_end(self, end: StepEnd) -> None:
        self._seen.append(f"{self._name} step {end.step}")


def test_watchers_see_begins_and_ends_as_nested_calls_would() -> None:
    seen: list[str] = []
    events = Events([Noting("inner", seen)])
    events.add(Watcher(), Noting("outer", seen))

    def initialize(engine: str, *_: Any, **__: Any) -> None:
        seen.append("made")

    events._make_engine(initialize, "engine", None, model="model")
    assert seen == ["outer begin model", "inner begin model", "made", "inner end engine", "outer end engine"]
    assert events.has_engine
    seen.clear()
    events.end(Watcher.on_step_end, StepEnd(3, 0, 0, 0.0, None))
    assert seen == ["inner step 3", "outer step 3"]


@pytest.mark.parametrize("wants", [True, False])
def test_one_watcher_is_enough_to_go_on(wants: bool) -> None:
    class Wanting(Watcher):
        def wants_more(self) -> bool:
            return wants

    assert Events([Watcher(), Wanting()]).wants_more() == wants


def test_what_follows_the_step_of_an_engine_is_part_of_the_step() -> None:
    """Such as the time in which its tensors are labelled."""
    seen = mock.Mock()
    seen.backend.flops_of.return_value = seen.backend.flops = 0.0
    steps = Steps(seen.backend, seen.events, mock.Mock(calls=[]), mock.Mock(flops=0), time=seen.time, last=0)
    engine = SimpleNamespace(global_steps=0)
    steps._step(lambda engine: setattr(engine, "global_steps", 1), engine)
    names = [name for name, *_ in seen.mock_calls]
    ends = ("events.end", "time.record_events")
    assert [name for name in names if name in ends] == ["events.end", "time.record_events", "events.end"]
    assert [call.args[0] for call in seen.events.end.mock_calls] == [
        *(Watcher.on_engine_step_end, Watcher.on_step_end)
    ]

"""The YAML of ``accelerate launch``: processes, machines and devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.findings import SetValue
from zerokit.lint.rule import Hit, launch_rule
from zerokit.lint.rules.accelerate_launch import (
    SECTION,
    deepspeed_section,
    is_local,
    launch_file,
    runs_deepspeed,
)

_SWITCHES = ("debug", "enable_cpu_affinity", "same_network")
_FALSE_WORDS = ("false", "no", "off", "n", "0", "none")


def _count(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@launch_rule(
    "launch-processes",
    bad=launch_file(num_machines=2, num_processes=7, section={"deepspeed_hostfile": "hostfile"}),
    good=launch_file(num_machines=2, num_processes=8, section={"deepspeed_hostfile": "hostfile"}),
)
def launch_processes(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A number of processes that does not divide among the machines

    `num_processes` counts those of all machines. accelerate starts `num_processes // num_machines` on each,
    so that 7 on 2 machines become 6. Without the key it stops, unless the command line has
    `--num_processes`.

    Source: `_validate_launch_command` in `accelerate/commands/launch.py`, `prepare_deepspeed_cmd_env` in
    `accelerate/utils/launch.py` (1.15).
    """
    if not runs_deepspeed(data):
        return
    if data.get("num_processes", -1) in (None, -1):
        message = "'num_processes' is absent, so accelerate launch needs the option --num_processes"
        yield Hit((), message, 'Add "num_processes", unless the command line has it', severity="info")
        return
    processes, machines = _count(data, "num_processes"), _count(data, "num_machines") or 1
    path = ("num_processes",)
    if processes is None:
        # A text is passed on as it is, and works where accelerate does not calculate with it.
        works = str(data["num_processes"]).isdigit() and machines == 1 and not data.get("use_cpu")
        message = f"'num_processes' must be a whole number, not {data['num_processes']!r}"
        yield Hit(path, message, "Write a whole number", severity="warning" if works else None)
    elif processes % machines:
        each = processes // machines
        message = (
            f"{processes} processes do not divide among {machines} machines: accelerate starts {each} on each"
        )
        yield Hit(path, message, f"Write a multiple of {machines}")


@launch_rule(
    "launch-hostfile",
    severity="warning",
    bad=launch_file(num_machines=2, num_processes=16),
    good=launch_file(num_machines=2, num_processes=16, section={"deepspeed_multinode_launcher": "standard"}),
)
def launch_hostfile(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Several machines without a hostfile

    With every `deepspeed_multinode_launcher` but `standard`, accelerate calls DeepSpeed's launcher with a
    hostfile. If none is named, the file is called "None", is not found, and DeepSpeed "will proceed with
    training with local resources only": each machine trains by itself.

    Name a `deepspeed_hostfile`, or use `standard`, which starts PyTorch's launcher on each machine.

    Source: `prepare_deepspeed_cmd_env` in `accelerate/utils/launch.py` (1.15), `fetch_hostfile` in
    `deepspeed/launcher/runner.py`.
    """
    section = deepspeed_section(data)
    machines = _count(data, "num_machines") or 1
    launcher = section.get("deepspeed_multinode_launcher") or "pdsh"
    if not runs_deepspeed(data) or machines == 1 or launcher == "standard":
        return
    if section.get("deepspeed_hostfile") is None:
        message = f"{machines} machines with the launcher {launcher} need a 'deepspeed_hostfile'"
        path = (SECTION,) if SECTION in data else ()
        yield Hit(path, message, "Add it, or use the launcher standard")


@launch_rule(
    "launch-machine-rank",
    severity="warning",
    bad=launch_file(
        num_machines=2, num_processes=16, machine_rank=2, section={"deepspeed_hostfile": "hosts"}
    ),
    good=launch_file(
        num_machines=2, num_processes=16, machine_rank=1, section={"deepspeed_hostfile": "hosts"}
    ),
)
def launch_machine_rank(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A machine rank out of range

    `machine_rank` counts from 0, so that the last of 2 machines is 1. PyTorch's launcher refuses a greater
    one; with a hostfile the first machine starts all others.

    Source: `prepare_deepspeed_cmd_env` in `accelerate/utils/launch.py` (1.15).
    """
    machines, rank = _count(data, "num_machines") or 1, data.get("machine_rank", 0)
    if runs_deepspeed(data) and isinstance(rank, int) and not 0 <= rank < machines:
        message = f"'machine_rank' {rank} is not one of {machines} machines, which count from 0"
        yield Hit(("machine_rank",), message, f"Write a number from 0 to {machines - 1}")


@launch_rule("launch-gpu-ids", bad=launch_file(gpu_ids=0), good=launch_file(gpu_ids="all"))
def launch_gpu_ids(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A list of GPUs that accelerate cannot use

    `gpu_ids` is a text such as "0,1", or "all". YAML reads a single 0 as a number, on which accelerate stops
    with "'int' object has no attribute 'split'". With fewer GPUs than processes on a machine, the processes
    beyond them find no device.

    Source: `_validate_launch_command` in `accelerate/commands/launch.py`, `prepare_deepspeed_cmd_env` in
    `accelerate/utils/launch.py` (1.15).
    """
    path, ids = ("gpu_ids",), data.get("gpu_ids")
    if not is_local(data) or ids is None or ids == "all":
        return
    if not isinstance(ids, str):
        meant = str(ids) if isinstance(ids, int) and not isinstance(ids, bool) else None
        fix = (SetValue(path, meant),) if meant is not None else ()
        yield Hit(path, f"'gpu_ids' must be a text, not {ids!r}", f'Write "{meant or "0,1"}", in quotes', fix)
        return
    listed = [part for part in ids.split(",") if part.strip()]
    processes, machines = _count(data, "num_processes"), _count(data, "num_machines") or 1
    if runs_deepspeed(data) and processes is not None and processes // machines > len(listed):
        message = f"{processes // machines} processes on a machine, but 'gpu_ids' has {len(listed)}"
        yield Hit(path, message, "List as many, or lower 'num_processes'", severity="warning")


@launch_rule("launch-cpu", severity="warning", bad=launch_file(use_cpu=True), good=launch_file(use_cpu=False))
def launch_cpu(data: Mapping[str, Any]) -> Iterator[Hit]:
    """'use_cpu', which has no effect with DeepSpeed

    accelerate tells a script to use the CPU by a variable that it sets for its other ways to start. With
    DEEPSPEED it does not, and DeepSpeed takes the GPUs if there are any. (The option `--cpu` starts the
    script without DeepSpeed.)

    Source: `prepare_deepspeed_cmd_env` and `prepare_simple_launcher_cmd_env` in `accelerate/utils/launch.py`
    (1.15).
    """
    if runs_deepspeed(data) and data.get("use_cpu") is True:
        message = "'use_cpu' has no effect with 'distributed_type' DEEPSPEED"
        yield Hit(("use_cpu",), message, "Write false; set CUDA_VISIBLE_DEVICES to hide the GPUs")


@launch_rule("launch-switch", bad=launch_file(debug="false"), good=launch_file(debug=False))
def launch_switch(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A switch that is on because its value is a string

    accelerate asks these keys only whether they are empty, and "false" in quotes is not: it switches `debug`,
    `enable_cpu_affinity` and `same_network` on.

    Source: `prepare_deepspeed_cmd_env` in `accelerate/utils/launch.py` (1.15).
    """
    if not runs_deepspeed(data):
        return
    for key in _SWITCHES:
        value = data.get(key)
        if isinstance(value, str) and value.lower() in _FALSE_WORDS:
            message = f"'{key}' is the text \"{value}\", which accelerate takes for true"
            yield Hit((key,), message, "Write false, without quotes", (SetValue((key,), False),))

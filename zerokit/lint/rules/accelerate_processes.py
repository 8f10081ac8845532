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
    runs_deepspeed,
)

_SWITCHES = ("debug", "enable_cpu_affinity", "same_network")
_FALSE_WORDS = ("false", "no", "off", "n", "0", "none")


def _count(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@launch_rule("launch-processes")
def launch_processes(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A number of processes that does not divide among the machines"""
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


@launch_rule("launch-hostfile")
def launch_hostfile(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Several machines without a hostfile"""
    section = deepspeed_section(data)
    machines = _count(data, "num_machines") or 1
    launcher = section.get("deepspeed_multinode_launcher") or "pdsh"
    if not runs_deepspeed(data) or machines == 1 or launcher == "standard":
        return
    if section.get("deepspeed_hostfile") is None:
        message = f"{machines} machines with the launcher {launcher} need a 'deepspeed_hostfile'"
        path = (SECTION,) if SECTION in data else ()
        yield Hit(path, message, "Add it, or use the launcher standard")


@launch_rule("launch-machine-rank")
def launch_machine_rank(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A machine rank out of range"""
    machines, rank = _count(data, "num_machines") or 1, data.get("machine_rank", 0)
    if runs_deepspeed(data) and isinstance(rank, int) and not 0 <= rank < machines:
        message = f"'machine_rank' {rank} is not one of {machines} machines, which count from 0"
        yield Hit(("machine_rank",), message, f"Write a number from 0 to {machines - 1}")


@launch_rule("launch-gpu-ids")
def launch_gpu_ids(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A list of GPUs that accelerate cannot use"""
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


@launch_rule("launch-cpu")
def launch_cpu(data: Mapping[str, Any]) -> Iterator[Hit]:
    """'use_cpu', which has no effect with DeepSpeed"""
    if runs_deepspeed(data) and data.get("use_cpu") is True:
        message = "'use_cpu' has no effect with 'distributed_type' DEEPSPEED"
        yield Hit(("use_cpu",), message, "Write false; set CUDA_VISIBLE_DEVICES to hide the GPUs")


@launch_rule("launch-switch")
def launch_switch(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A switch that is on because its value is a string"""
    if not runs_deepspeed(data):
        return
    for key in _SWITCHES:
        value = data.get(key)
        if isinstance(value, str) and value.lower() in _FALSE_WORDS:
            message = f"'{key}' is the text \"{value}\", which accelerate takes for true"
            yield Hit((key,), message, "Write false, without quotes", (SetValue((key,), False),))

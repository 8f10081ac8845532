"""The command `nvidia-smi`, which scripts run to log or to find GPUs. It comes first in PATH.

Names, counts and memory are the virtual device's before anything runs on it. This file is also the program
that runs, so it imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

DRIVER_VERSION = "570.86.15"
CUDA_VERSION = (12, 8)

_UNITS = {"memory": "MiB", "utilization": "%"}
"""Units of ``--query-gpu`` fields, by the first word of the field."""


def uuid(index: int) -> str:
    """The driver's name of the GPU with that index."""
    return f"GPU-{index:08d}"


def install(folder: Path, *, name: str, total_bytes: int, capability: tuple[int, int], visible: int) -> None:
    """Put the command in a new `folder`, for `visible` GPUs of the node, and in PATH."""
    from zerokit.files import write_file

    folder.mkdir(parents=True)
    answers = [name, total_bytes // 2**20, ".".join(map(str, capability)), visible]
    command = folder / "nvidia-smi"
    words = shlex.join([sys.executable, "-IS", __file__, json.dumps(answers)])
    write_file(command, f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])


def answer(words: list[str], name: str, total_mib: int, capability: str, count: int) -> str:
    """The command's output for the arguments `words`, on a node with `count` GPUs of `total_mib` MiB.

    Raises:
        ValueError: the rehearsal knows no answer.
    """
    options = _options(words)
    which = options.pop("-i", None) or options.pop("--id", None)
    indices = [int(word) for word in which.split(",")] if which else [*range(count)]
    if not all(0 <= index < count for index in indices):
        raise ValueError("No devices were found")
    form = options.pop("--format", "").split(",")
    if options.keys() & {"-L", "--list-gpus"}:
        return "".join(f"GPU {index}: {name} (UUID: {uuid(index)})\n" for index in indices)
    if not options:
        return _table(indices, name, total_mib)
    ((option, fields), *others) = options.items()
    if others or option not in ("--query-gpu", "--query-compute-apps"):
        raise ValueError(f"the rehearsal's nvidia-smi does not answer {shlex.join(words)}")
    chosen = [field.strip() for field in fields.split(",")]
    units = [_UNITS.get(field.partition(".")[0]) for field in chosen]
    heading = [f"{field} [{unit}]" if unit else field for field, unit in zip(chosen, units, strict=True)]
    lines = [] if "noheader" in form else [heading]
    for index in indices if option == "--query-gpu" else []:  # no process has begun
        values: dict[str, object] = {
            "index": index,
            "count": count,
            **dict.fromkeys(("name", "gpu_name"), name),
            **dict.fromkeys(("uuid", "gpu_uuid"), uuid(index)),
            "driver_version": DRIVER_VERSION,
            "compute_cap": capability,
            **dict.fromkeys(("memory.total", "memory.free"), total_mib),
            **dict.fromkeys(("memory.used", "utilization.gpu", "utilization.memory"), 0),
        }
        lines.append(
            [
                f"{values[field]} {unit}"
                if unit and field in values and "nounits" not in form
                else str(values.get(field, "[N/A]"))
                for field, unit in zip(chosen, units, strict=True)
            ]
        )
    return "".join(f"{', '.join(line)}\n" for line in lines)


def _options(words: list[str]) -> dict[str, str]:
    """Options and their values, after ``=`` or as the next word."""
    found: dict[str, str] = {}
    last = ""
    for word in words:
        if word.startswith("-"):
            last, _, found[last] = word.partition("=")
        else:
            found[last] = word
    return found


def _table(indices: list[int], name: str, total_mib: int) -> str:
    cuda = ".".join(map(str, CUDA_VERSION))
    head = f"NVIDIA-SMI {DRIVER_VERSION}    Driver Version: {DRIVER_VERSION}    CUDA Version: {cuda}"
    lines = [f"{index:3}  {name:<40} {0:>8}MiB / {total_mib:>6}MiB" for index in indices]
    edge = f"+{'-' * 78}+"
    body = "".join(f"| {line:<76} |\n" for line in lines)
    return f"{edge}\n| {head:<76} |\n{edge}\n{body}{edge}\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(answer(sys.argv[2:], *json.loads(sys.argv[1])))
    except ValueError as error:
        sys.exit(str(error))

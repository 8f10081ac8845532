"""The options of a rehearsal, for the command line, for Python and for the ranks' job.

`options.json` has what people read about each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from zerokit.choices import Launcher
from zerokit.hardware import GPUS_PER_NODE

REPEATED = ("KEY=VALUE", "PKG[==VERSION]")
"""Metavars of options that may be repeated."""
DRAWINGS = ("trace", "plot", "timeline", "memory_snapshot")
"""The options that name files to draw."""


class Option(NamedTuple):
    """How people see an option: its entry in `options.json`."""

    help: str
    flag: str = ""
    """On the command line; empty: from the field's name."""
    metavar: str | None = None
    """Also how its text is read: SIZE, TIME, WORDS and KEY=VALUE are parsed; `REPEATED` may be repeated."""
    default: str | None = None
    """In words, where the value says too little."""
    minimum: int | None = None
    is_argument: bool = False


@dataclass(frozen=True)
class RunOptions:
    """Options that the ranks' job has too."""

    script: str | Path
    arguments: Sequence[str] = ()
    _: KW_ONLY
    num_gpus: int
    gpus_per_node: int = GPUS_PER_NODE
    module: bool = False
    launcher: Launcher = "torchrun"
    accelerate_config: str | Path | None = None
    accelerate_arguments: Sequence[str] = ()
    scan_seconds: float = 60.0


@dataclass(frozen=True)
class RehearsalOptions(RunOptions):
    """All options of a rehearsal."""

    _: KW_ONLY
    gpu: str | None = None
    hardware: str | Path | None = None
    gpu_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    steps: int | None = None
    """With `time` 3 by default, because ZeRO-3 prefetches parameters from the third step on."""
    time: bool = False
    real_time: bool = False
    with_data_time: bool = False
    rank: int | None = None
    ds_config_overrides: Mapping[str, Any] | None = None
    has: Sequence[str] = ()
    advise: bool | None = None
    timeout: float | None = None
    trace: str | Path | None = None
    plot: str | Path | None = None
    timeline: str | Path | None = None
    memory_snapshot: str | Path | None = None
    script_prints_on: Literal["stdout", "stderr"] = "stdout"
    """Where the output of the script goes; not on the command line."""


def described(options: type) -> dict[str, tuple[Any, Option]]:
    """The type and the description of each option of a dataclass that people can set."""
    kinds = get_type_hints(options)
    texts = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        one.name: (kinds[one.name], Option(**texts[one.name])) for one in fields(options) if one.name in texts
    }

"""The options of a rehearsal, each declared once: for the command line, for Python and for the ranks' job.

Python callers may pass a path as text, sizes as integers and overrides as a mapping. `options.json` says how
people see each option; `zerokit.cli.options` makes Typer options of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from zerokit.choices import Launcher
from zerokit.hardware import GPUS_PER_NODE
from zerokit.tables import table_of

REPEATED = ("KEY=VALUE", "PKG[==VERSION]")
"""Metavars of options that may be repeated."""
DRAWINGS = ("trace", "plot", "timeline")
"""The options that name files to draw."""


@dataclass(frozen=True)
class RunOptions:
    """Options that the ranks' job has too."""

    script: str | Path
    arguments: Sequence[str] = ()
    _: KW_ONLY
    num_gpus: int
    gpus_per_node: int = GPUS_PER_NODE
    network_gbit_s: float | None = None
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
    rank: int | None = None
    ds_config_overrides: Mapping[str, Any] | None = None
    has: Sequence[str] = ()
    advise: bool | None = None
    timeout: float | None = None
    trace: str | Path | None = None
    plot: str | Path | None = None
    timeline: str | Path | None = None
    script_prints_on: Literal["stdout", "stderr"] = "stdout"
    """Where the output of the script goes; not on the command line."""
    show: Callable[[Any], None] = lambda _: None
    """Is given the report before changes are rehearsed; not on the command line."""


def described(options: type) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the type and the row of each field that `options.json` has, by name.

    Rows are like those of the command line's own `options.json`. The metavar also says how a text is read: SIZE,
    TIME, GBIT, WORDS and KEY=VALUE are parsed; `REPEATED` may be repeated.
    """
    rows = table_of(__file__)
    hints = get_type_hints(options)
    return {one.name: (hints[one.name], rows[one.name]) for one in fields(options) if one.name in rows}

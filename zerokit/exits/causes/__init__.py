"""The meaning of log lines: the rows of `TOPIC.json`, as an ordered table.

A row matches words of a library, so it applies to any script. `{name}` in its message or fix is a group of
its pattern, and `{what}` the whole match. `<NAME>` in its fix is one of :data:`ADVICE`. The rows of
`exceptions.json`, `deepspeed_errors.json` and `library_errors.json` match only unhandled exceptions.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = "cuda-out-of-memory"
GPU_TAKEN = "gpu-taken"
EMPTY_TENSOR = "empty-tensor"
LOST_RANK = "lost-rank"
NCCL_TIMEOUT = "nccl-timeout"
TIME_LIMIT = "time-limit"
GLOO_TIMEOUT = "collective-timeout"
ZERO_INIT = "zero-init"
ZEROKIT = "zerokit"
EXIT_CODE = "exit-code"
OUTSIDE_CAUSES = frozenset(
    {
        *("nccl", "nccl-cuda", "nccl-link", "nccl-stuck", NCCL_TIMEOUT, GLOO_TIMEOUT, "lost-rank"),
        *("no-meeting", "gpu-broken", "fabric-manager", "file-server", "node-failed"),
    }
)
"""Causes outside of the run: machines and networks. The same command may succeed at the next try."""


def _load(name: str) -> Any:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))


ADVICE: dict[str, str] = _load("advice")
"""Text that several fixes share."""


def with_advice(fix: str) -> str:
    """A fix with the shared text that it names."""
    return re.sub(r"<([A-Z_]+)>", lambda name: ADVICE[name[1]], fix)


class Weight(IntEnum):
    """How close a line is to the cause: the smallest weight is reported, and of equal ones the first line."""

    ENDED = 0
    """The system or the scheduler ended the run."""
    CAUSE = 1
    EXCEPTION = 2
    """A traceback without a known meaning."""
    KILLED = 3
    """A launcher saw a signal; the process itself could print nothing."""
    LEFT = 4
    """A launcher saw an exit code that a rank chose, such as by sys.exit(3)."""
    CONSEQUENCE = 5
    """Seen when another rank has failed, or while waiting for it."""
    GENERAL = 6
    """Printed for every such failure; another line may have the reason."""
    MENTIONED = 7
    """Words of a cause in a line that is no error: a warning, or a retry."""
    EXIT = 8
    """A launcher saw that something failed."""
    NOTHING = 9
    """No line says that anything failed."""


@dataclass(frozen=True)
class Cause:
    """One row of the table."""

    name: str
    message: str
    fix: str
    patterns: tuple[re.Pattern[str], ...]
    """Each starts with plain text, which re finds quickly."""
    weight: Weight
    within: re.Pattern[str]
    """For exceptions: the places that raised it, ``LIBRARY:LINE SCRIPT:LINE``."""

    def fill(self, match: re.Match[str]) -> tuple[str, str]:
        """Message and fix, with the words of a match."""
        groups = {"what": match[0], **match.groupdict(default="")}
        message, fix = (
            re.sub(r"\{(\w+)\}", lambda name: groups.get(name[1], name[0]), text) for text in (self.message, self.fix)
        )
        return message, fix


_TOPICS = (
    *("versions", "schedulers", "gpus", "hosts", "launch", "checkpoints", "software", "training", "ended"),
    "communication",
)


def _rows(topics: Iterable[str]) -> Iterator[Cause]:
    for topic in topics:
        table = _load(topic)
        for row in table["causes"]:
            weight = Weight[row.get("weight", table.get("weight", "cause")).upper()]
            fix, patterns = with_advice(row["fix"]), tuple(map(re.compile, row["patterns"]))
            within = re.compile(row.get("within", table.get("within", "")))
            yield Cause(row["name"], row["message"], fix, patterns, weight, within)


CAUSES: tuple[Cause, ...] = tuple(_rows(_TOPICS))
"""The first row that matches a line applies."""
EXCEPTIONS: tuple[Cause, ...] = tuple(_rows(["exceptions", "deepspeed_errors", "library_errors"]))
"""The first row that matches an unhandled exception, ``KIND: TEXT``, applies."""

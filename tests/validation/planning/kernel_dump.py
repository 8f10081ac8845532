"""Trains like `train_one`, in a rehearsal, and writes every kernel of the last step to a file.

Each kernel takes as many nanoseconds as the number of its key (operator, sizes), so that the streams tell
which kernel ran and, as the device never keeps the host waiting, when the host launched it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.validation.memory import train_one
from zerokit.rehearsal.native.clock import Cost, WorkKind
from zerokit.rehearsal.recording import SPAN
from zerokit.rehearsal.timing.operators import Call, Operators, TensorUse
from zerokit.rehearsal.timing.rank_time import rank_time
from zerokit.reporting.phases import RUN_PHASES

KEYS: list[dict[str, Any]] = []
_COST = Operators.cost


def _numbered(self: Operators, call: Call) -> Cost:
    found = _COST(self, call)
    uses = [asdict(one) for one in call.entries if isinstance(one, TensorUse)]
    KEYS.append({"name": call.name, "uses": uses})
    return found._replace(duration=len(KEYS) if found.duration else 0)


def main() -> None:
    """`argv`: the description of the run, and the file to write."""
    Operators.cost = _numbered  # type: ignore[method-assign]
    train_one.main()
    time = rank_time()
    assert time is not None
    ends = time.step_ends()
    spans = time._backend.spans(SPAN)
    last = spans[(spans["begin"] >= ends[-2]) & (spans["begin"] < ends[-1]) & (spans["stream"] >= 0)]
    kernels = [
        [RUN_PHASES[one["phase"]], int(one["end"] - one["begin"]) - 1, int(one["begin"]) - ends[-2]]
        for one in last
        if one["kind"] == WorkKind.KERNEL
    ]
    Path(sys.argv[2]).write_text(json.dumps({"keys": KEYS, "kernels": kernels}), encoding="utf-8")


if __name__ == "__main__":
    main()

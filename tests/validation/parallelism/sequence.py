"""Trains groups of ranks and one process on the same examples, and records the largest differences.

    python -m tests.validation.parallelism.sequence

Cases that are in the record already are left out; remove it to train all.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.validation.parallelism.runs import CASES, START, make_start, run_case

RECORD = Path(__file__).parents[1] / "results" / "sequence_parallel.json"


def main() -> None:
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {"versions": {}, "differences": {}}
    found["versions"] = {name: version(name) for name in ("accelerate", "deepspeed", "torch", "transformers")}
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_start(folder / START)
        for case in CASES:
            if str(case) not in found["differences"]:
                one, group = run_case(case, folder)
                assert group.engine == ["DeepSpeedEngine", 3, case.sequence]
                assert group.tokens == one.tokens
                assert ("the loss is computed" in group.said) == (case.kind == "chunked")
                found["differences"][str(case)] = group.difference(one)
                RECORD.write_text(json.dumps(found, indent=2) + "\n")
                print(case, group.difference(one), flush=True)


if __name__ == "__main__":
    main()

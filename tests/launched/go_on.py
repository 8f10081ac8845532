"""Goes on from checkpoints on all ranks, each of which sees all examples of a step: the losses, on stdout.

``go_on.py FOLDER RUN[:STAGE]...``: of each the checkpoint in FOLDER/RUN, under its stage or another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
from deepspeed import comm as dist

from tests.launched.checkpoint_runs import NEXT_STEPS, RUNS
from tests.launched.save_checkpoints import begin, train

if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    folder, *wanted = sys.argv[1:]
    for one in wanted:
        name, _, stage = one.partition(":")
        run = RUNS[name] | ({"stage": int(stage)} if stage else {})
        engine = begin(run, Path(folder))
        loaded = eval(Path(folder, one, "load.txt").read_text(), {"engine": engine})  # as reshard prints it
        assert loaded[0] is not None
        losses = train(engine, NEXT_STEPS, [0, 1])
        if dist.get_rank() == 0:
            Path(folder, one, "losses.json").write_text(json.dumps(losses))

"""Trains the recipe given as the first argument in one process for each further argument, a size of groups."""

from __future__ import annotations

import sys
from pathlib import Path

from zerokit.distributed.group import RankGroup, leave, run_on_all_ranks
from zerokit.training.main import train

if __name__ == "__main__":
    recipe = Path(sys.argv[1])

    def main(group: RankGroup) -> None:
        for number, size in enumerate(sys.argv[2:]):
            out = recipe.parent / f"out-{number}"
            train(group, recipe, ["--training.output_dir", str(out), "--parallel.sequence", size])

    leave(run_on_all_ranks(main))

"""Trains recipe after recipe on the same ranks: ``train_recipes.py FOLDER``, which has a file for each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.training.main import train

if __name__ == "__main__":
    group = RankGroup(read_ranks())
    os.chdir(sys.argv[1])
    for recipe in sorted(Path().glob("*.yaml")):
        train(group, recipe, ())
        unset_hf_deepspeed_config()

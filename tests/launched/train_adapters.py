"""Trains recipe after recipe on the same ranks: ``train_adapters.py FOLDER``, which has a file for each.

Rank 0 keeps the logits of each trained model, as tests/validation/training/train_for_logits.py does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from tests.validation.training.train_for_logits import save_with_logits
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.training import run
from zerokit.training.main import train

if __name__ == "__main__":
    run.publish_model = save_with_logits
    group = RankGroup(read_ranks())
    os.chdir(sys.argv[1])
    for recipe in sorted(Path().glob("*.yaml")):
        train(group, recipe, ())
        unset_hf_deepspeed_config()  # the next model may be in one piece

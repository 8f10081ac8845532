"""What blocks are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.combinations import REST
from tests.rehearsal.commands import SCRIPTS, rehearse


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_buckets_of_gradients_are_called_by_the_key_that_sizes_them(stage: int, tmp_path: Path) -> None:
    words = ("--format", "json", "--num-gpus", 2, "--gpu", "H100", SCRIPTS / "one_bucket.py", stage)
    blocks = rehearse(*words, cwd=tmp_path).report["device"]["largest_blocks_at_peak"]
    (bucket,) = (block for block in blocks if block["name"] == "reduce_bucket_size")
    assert bucket["shape"] == [50_000_000]
    assert bucket["category"] == "buffers"


def test_what_a_rank_holds_of_a_sharded_tensor_is_called_what_the_tensor_is(tmp_path: Path) -> None:
    words = ("--format", "json", "--num-gpus", 2, "--gpu", "H100", SCRIPTS / "fully_sharded.py")
    device = rehearse(*words, cwd=tmp_path).report["device"]
    share = 4 * 4 * 1024 * 1024 // 2
    steps_of_adam = 4 * 512
    assert device["at_peak"]["optimizer_states"] == 2 * share + steps_of_adam
    assert device["at_peak"]["parameters"] >= share

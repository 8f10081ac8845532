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

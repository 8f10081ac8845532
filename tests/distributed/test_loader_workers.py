"""Workers of data loaders: a batch that a worker cannot pass on ends the run."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from tests.processes import PATIENCE
from zerokit.distributed.loader_workers import report_lost_batches
from zerokit.errors import RankError

pytestmark = pytest.mark.torch


class Rows(Dataset[int]):
    """The numbers from 0 to 3."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def collate(rows: list[int]) -> Any:
    """A batch; the last one cannot be pickled."""
    return rows if 3 not in rows else lambda: rows


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_batch_that_a_worker_cannot_pass_on_is_reported(context: str) -> None:
    report_lost_batches()
    loader = DataLoader(
        Rows(),
        batch_size=1,
        collate_fn=collate,
        num_workers=1,
        multiprocessing_context=context,
        timeout=PATIENCE,  # without the report the loader waits for ever
    )
    batches = iter(loader)
    assert [next(batches) for _ in range(3)] == [[0], [1], [2]]
    with pytest.raises(RankError, match=r"a data loader worker cannot pass on a batch: .*pickle"):
        next(batches)

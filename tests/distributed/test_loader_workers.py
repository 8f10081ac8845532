"""Workers of data loaders: a batch that a worker cannot pass on ends the run."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from tests import processes
from tests.combinations import REST
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


@pytest.mark.parametrize("context", ["fork", "spawn", pytest.param("forkserver", marks=REST)])
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


STOPPED = """
import multiprocessing, os, signal
from zerokit.distributed.exit_reports import exit_now
context = multiprocessing.get_context("fork")
worker = context.Process(target=lambda: os.kill(os.getpid(), signal.SIGSTOP), daemon=True)
worker.start()
os.waitpid(worker.pid, os.WUNTRACED)
exit_now(3)
"""


def test_a_worker_that_is_stopped_does_not_outlive_its_rank() -> None:
    """It has the pipe that is read here to its end."""
    run = processes.run([sys.executable, "-c", STOPPED])
    assert (run.returncode, run.stderr) == (3, "")

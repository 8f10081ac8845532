"""A loader worker that fails ends the run with a line, at once."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests import processes
from zerokit.distributed.loader_workers import report_lost_batches
from zerokit.errors import RankError

pytestmark = pytest.mark.torch
ALONE = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}


class Fails:
    """Cannot be pickled, and so not be passed on."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> str:
        raise self.error


class Rows(Dataset[Any]):
    """Two numbers, and then what fails."""

    def __init__(self, last: Any) -> None:
        self.rows = [torch.tensor(1.0), torch.tensor(2.0), last]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return row() if callable(row) else row


def loader(last: Any) -> DataLoader[Any]:
    report_lost_batches()
    # In vain for a minute: without a report the loader would wait for ever.
    return DataLoader(Rows(last), batch_size=None, num_workers=1, timeout=60)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            RuntimeError("unable to write to file </torch_7_1>: No space left on device (28)"),
            "Start the container with --shm-size=16g or --ipc=host",
        ),
        (ValueError("no such form"), "Set training.dataloader_num_workers to 0, which shows where it fails"),
    ],
)
def test_a_batch_that_a_worker_cannot_pass_on_ends_the_run(error: Exception, hint: str) -> None:
    batches = iter(loader(Fails(error)))
    assert [next(batches).item() for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(RankError) as caught:
        next(batches)
    said = f"rank 0: a data loader worker cannot pass on a batch: {type(error).__name__}: {error}. {hint}"
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_other_batches_and_the_end_of_the_epoch_still_come() -> None:
    assert [row.item() for row in loader(torch.tensor(3.0))] == [1.0, 2.0, 3.0]


ENDS = """
import os, sys
from torch.utils.data import DataLoader
from zerokit.distributed.group import run_on_all_ranks

class Rows:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        exec(sys.argv[1])

sys.exit(run_on_all_ranks(lambda group: list(DataLoader(Rows(), num_workers=1))))
"""


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("os.kill(os.getpid(), 7)", "(is killed by signal: Bus error. Start the container|exited unexpect)"),
        (
            "os.kill(os.getpid(), 9)",
            "(is killed by signal: Killed. Set dataloader_num_wor|exited unexpectedl)",
        ),
        (
            "os._exit(3)",
            "exited unexpectedly(| with exit code 3). Set training.dataloader_num_workers to 0, which",
        ),
    ],
    ids=["SIGBUS", "SIGKILL", "exits"],
)
def test_a_worker_that_ends_is_one_line(ends: str, said: str) -> None:
    """torch raises it from a handler of a signal, or where it waits: whichever comes first."""
    done = processes.run([sys.executable, "-c", ENDS, ends], env=ALONE)
    assert done.returncode == 1
    lines = done.stderr.replace("\0", "").splitlines()  # which torch's own handler writes
    (line,) = (line for line in lines if line.strip() and not line.startswith("ERROR: Unexpected bus error"))
    assert re.match(rf"zerokit: error: rank 0: data loader worker \(pid.* {said}", line), line

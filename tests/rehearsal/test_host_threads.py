"""How many threads a rank has for what the host computes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from tests.rehearsal.recordings import job
from zerokit.choices import Launcher
from zerokit.rehearsal.worker import launchers
from zerokit.rehearsal.worker.launchers import threads_of_launcher


@pytest.mark.parametrize(
    ("launcher", "local_ranks", "told", "threads"),
    [
        ("torchrun", 8, None, 1),
        ("torchrun", 1, None, None),
        ("deepspeed", 8, None, None),
        ("torchrun", 8, "12", 12),
        ("deepspeed", 8, "4,2", 4),
        # What accelerate sets, in its variables.
        ("accelerate", 8, "1", 1),
        ("torchrun", 8, "many", 1),
    ],
)
def test_launchers_leave_a_rank_so_many_threads(
    launcher: Launcher, local_ranks: int, told: str | None, threads: int | None
) -> None:
    environment = {} if told is None else {"OMP_NUM_THREADS": told}
    assert threads_of_launcher(launcher, local_ranks, environment) == threads


@pytest.mark.parametrize(("launcher", "threads"), [("torchrun", 1), ("deepspeed", None), ("accelerate", 6)])
def test_a_rank_has_the_threads_that_its_launcher_leaves_it(
    launcher: Launcher, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[int | None] = []
    used: list[int] = []
    time = SimpleNamespace(have_threads=had.append)
    monkeypatch.setattr(launchers, "rank_time", lambda: time)
    monkeypatch.setattr(launchers, "_accelerate_environment", lambda _job: {"OMP_NUM_THREADS": "6"})
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    launchers.prepare(job(launcher=launcher))
    assert had == [threads]
    assert (used or [None]) == [threads]
    assert os.environ["OMP_NUM_THREADS"] == str(threads or "")


@pytest.mark.parametrize(("wanted", "used"), [(0, 1), (3, 3)])
def test_cores_that_are_too_few_to_be_divided_leave_a_rank_one_thread(
    wanted: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", had.append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str((os.cpu_count() or 1) + 1))
    launchers.watch_threads(None)
    torch.set_num_threads(wanted)
    assert had == [used]

"""What the recorded rehearsals of very long sequences show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validation.parallelism.alst_lengths import WRITTEN, filling_length
from tests.validation.parallelism.long_context import VARIANTS
from tests.validation.parallelism.long_context import WRITTEN as CONTEXTS

LENGTHS = json.loads(WRITTEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LENGTHS)
def test_the_longest_length_is_near_the_published_one(name: str) -> None:
    """Of nvidia-smi's figure where GPU memory was the limit, but not full."""
    found = LENGTHS[name]
    published = found["published_length"]
    if found["published_limit"].startswith("GPU memory"):
        published = filling_length(found)
    assert -0.1 <= found["longest"] / published - 1 <= 0.11


@pytest.mark.torch
def test_a_worker_of_a_loader_keeps_what_its_parent_overwrites() -> None:
    """Why `alst_lengths` counts master weights and gradients on the host twice."""
    import torch
    from torch.utils.data import DataLoader

    size = 64 * 2**20
    states = torch.zeros(size // 4)
    batches = iter(DataLoader(range(8), num_workers=1))  # type: ignore[arg-type]
    next(batches)
    processes = ["self", *(str(worker.pid) for worker in batches._workers)]  # type: ignore[attr-defined]
    before = sum(map(proportional_bytes, processes))
    states.fill_(1)
    assert sum(map(proportional_bytes, processes)) - before == pytest.approx(size, rel=0.1)


def proportional_bytes(process: str) -> int:
    """Resident memory; what several processes share is divided among them."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def test_each_part_of_the_recipe_saves_memory_of_the_gpu() -> None:
    rows = json.loads(CONTEXTS.read_text(encoding="utf-8"))
    usual = rows.pop("as it is")
    assert usual["fits"]
    assert all(rows[name]["gpu_peak_gib"] > usual["gpu_peak_gib"] for name in VARIANTS if name in rows)

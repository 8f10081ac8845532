"""When whole weights fit beside a model in training, and which of them are gathered together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zerokit.generation import gathered
from zerokit.generation.mode import Free, Work
from zerokit.generation.model import ModelFiles
from zerokit.units import MIB

pytestmark = pytest.mark.torch


def partitioned(number: int, elements: int, dtype: torch.dtype, **of_shard: Any) -> Any:
    part: Any = torch.nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
    part.ds_id, part.ds_numel, part.ds_status = number, elements, SimpleNamespace(name="NOT_AVAILABLE")
    part.ds_tensor, part.nvme_swapper, part.ds_secondary_tensor = SimpleNamespace(**of_shard), None, None
    return part


@pytest.mark.parametrize(
    ("dtype", "work", "free", "fits"),
    [
        (torch.uint8, Work(16, 16, 4), 130, False),  # 100 MiB, 32 MiB for cuBLAS, and fragmentation
        (torch.uint8, Work(16, 16, 4), 160, True),
        (torch.float32, Work(16, 16, 4), 400, False),
        (torch.float32, Work(16, 16, 4), 500, True),
        (torch.uint8, None, 120, False),
        (torch.uint8, None, 130, True),
    ],
    ids=str,
)
def test_gathered_weights_are_counted_as_they_are_stored(
    dtype: torch.dtype,
    work: Work | None,
    free: int,
    fits: bool,
    model: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gathered, "free_memory", lambda _: Free(free * MIB, 0, None))
    parts = [partitioned(number, 50 * MIB, dtype) for number in range(2)]
    assert gathered._fits(SimpleNamespace(config=model.config), parts, work) == fits
    assert ("gathered: needs" in capsys.readouterr().err) != fits


def test_quantized_weights_are_gathered_one_by_one() -> None:
    scales = {"ds_quant_scale": None}
    parts = [partitioned(number, 9, torch.float32, **(scales if number in (2, 3) else {})) for number in range(6)]
    assert [[part.ds_id for part in group] for group in gathered._groups(parts)] == [[0, 1], [2], [3], [4, 5]]

"""Stage 3's decisions about gathered parameters go with the order of modules that they were made for."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.swap_tensor import partitioned_param_swapper
from deepspeed.runtime.zero import partitioned_param_coordinator

from zerokit.training.gathering import decide_anew, read_once

Swapper = partitioned_param_swapper.AsyncPartitionedParameterSwapper
Coordinator = partitioned_param_coordinator.PartitionedParameterCoordinator
OWN = "_PartitionedParameterCoordinator"


def test_they_are_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decides = vars(Coordinator)[f"{OWN}__params_to_release"]
    cache = inspect.getclosurevars(decides).nonlocals["func"]
    coordinator = object.__new__(Coordinator)
    vars(coordinator)[f"{OWN}__submodule_order"] = ()
    module = torch.nn.Identity()
    vars(module)["ds_external_parameters"] = tuple  # called: none
    monkeypatch.setattr(Coordinator, "is_complete_trace", lambda self: True)
    monkeypatch.setattr(Coordinator, "_clear_trace_structures", Coordinator._clear_trace_structures)
    cache.cache_clear()
    decide_anew.__wrapped__()
    assert decides(coordinator, module, 0) == set()
    assert cache.cache_info().currsize == 1
    coordinator._clear_trace_structures()
    assert cache.cache_info().currsize == 0


def test_what_both_passes_want_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(Swapper, "swap_in", lambda self, params, async_op: read.append((params, async_op)))
    first, second = (SimpleNamespace(ds_id=number) for number in (1, 2))
    read_once.__wrapped__()
    object.__new__(Swapper).swap_in([first, second, first], async_op=True)
    assert read == [([first, second], True)]

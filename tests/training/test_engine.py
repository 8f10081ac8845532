"""DeepSpeed's step before the first one, undone: the first real step is Adam's first."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.swap_tensor import partitioned_param_swapper
from deepspeed.runtime.zero import partitioned_param_coordinator

from zerokit.training.engine import read_parameters_once, reset_module_order, undo_dummy_step


def optimizer_without_engine(kind: str, weight: torch.Tensor) -> Any:
    """DeepSpeed's 16-bit optimizer after its dummy step, with only the parts that hold state."""
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    master = weight.detach().float().clone().requires_grad_()
    if kind == "fused":
        optimizer = FP16_Optimizer.__new__(FP16_Optimizer)
        optimizer.fp32_groups_flat, optimizer.fp16_groups_flat = [master], [weight]
    else:
        optimizer = FP16_UnfusedOptimizer.__new__(FP16_UnfusedOptimizer)
        optimizer.fp32_groups, optimizer.fp16_groups = [[master]], [[weight]]
    optimizer.optimizer = adam(master)
    master.grad = torch.zeros_like(master)
    optimizer.optimizer.step()
    return optimizer


def adam(master: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.AdamW([master], lr=0.1, weight_decay=0.5)


@pytest.mark.parametrize("kind", ["fused", "unfused"])
def test_the_first_update_is_that_of_a_fresh_adam(kind: str) -> None:
    weight = torch.linspace(-2, 2, 8).bfloat16()
    gradient = torch.linspace(1, 3, 8)
    fresh = weight.float().clone().requires_grad_()
    fresh.grad = gradient.clone()
    adam(fresh).step()

    optimizer = optimizer_without_engine(kind, weight)
    master = optimizer.optimizer.param_groups[0]["params"][0]
    assert not torch.equal(master, weight.float())  # decayed by the dummy step
    undo_dummy_step(optimizer)
    assert torch.equal(master, weight.float())
    master.grad = gradient.clone()
    optimizer.optimizer.step()
    torch.testing.assert_close(master, fresh)


def test_any_other_optimizer_is_left_alone() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = adam(weight)
    weight.grad = torch.ones(3)
    optimizer.step()
    before = weight.detach().clone()
    undo_dummy_step(optimizer)
    assert torch.equal(weight, before)
    assert optimizer.state[weight]["step"] == 1


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
    reset_module_order.__wrapped__()
    assert decides(coordinator, module, 0) == set()
    assert cache.cache_info().currsize == 1
    coordinator._clear_trace_structures()
    assert cache.cache_info().currsize == 0


def test_what_both_passes_want_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(Swapper, "swap_in", lambda self, params, async_op: read.append((params, async_op)))
    first, second = (SimpleNamespace(ds_id=number) for number in (1, 2))
    read_parameters_once.__wrapped__()
    object.__new__(Swapper).swap_in([first, second, first], async_op=True)
    assert read == [([first, second], True)]

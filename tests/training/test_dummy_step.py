"""DeepSpeed's step before the first one, undone: the first real step is Adam's first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zerokit.training.dummy_step import undo_dummy_step


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

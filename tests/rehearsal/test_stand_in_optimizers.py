"""Stand-ins for compiled optimizers: what they refuse, and that they compute nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rehearsal import real_ops
from zerokit.rehearsal.stand_ins import fused_optimizers
from zerokit.rehearsal.stand_ins.cpu_optimizers import cpu_adagrad, cpu_adam, cpu_lion
from zerokit.rehearsal.stand_ins.fused_optimizers import check_lists, fused_lamb
from zerokit.rehearsal.stand_ins.zenflow_adam import Group, ZenFlowAdam

LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.999), 1e-8, 0.1


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("op", ["fused_adam", "cpu_adam"])
def test_adam_of_real_runs_is_adam(op: str, decoupled: bool) -> None:
    """Real runs, which rehearsals are compared with, train by these ops."""
    torch.manual_seed(0)
    start, gradients = torch.randn(1000), [torch.randn(1000) for _ in range(5)]
    expected = torch.nn.Parameter(start.clone())
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([expected], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    p, m, v = start, torch.zeros(1000), torch.zeros(1000)
    host = cpu_adam()
    real_ops._cpu_adam(host)
    host.create_adam(7, LR, *BETAS, EPS, DECAY, decoupled, False)
    for step, g in enumerate(gradients, start=1):
        expected.grad = g
        optimizer.step()
        if op == "cpu_adam":
            assert host.adam_update(7, step, LR, *BETAS, EPS, DECAY, True, p, g, m, v) == 0
        else:
            lists = [[g], [p], [m], [v]]
            rest = (LR, *BETAS, EPS, step, int(decoupled), 1, DECAY)
            real_ops.fused_adam().multi_tensor_adam(65536, torch.zeros(1), lists, *rest)
    torch.testing.assert_close(p, expected.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("params", "state"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float32)])
@pytest.mark.parametrize("optimizer", ["Adam", "Lion", "Adagrad"])
def test_cpu_optimizers_refuse_the_types_that_the_compiled_ones_refuse(
    params: torch.dtype, state: torch.dtype, optimizer: str
) -> None:
    p, s = torch.zeros(4, dtype=params), torch.zeros(4, dtype=state)
    calls: dict[str, Any] = {
        "Adam": lambda: cpu_adam().adam_update(0, 1, LR, *BETAS, EPS, DECAY, True, p, p, s, s),
        "Lion": lambda: cpu_lion().lion_update(0, 1, LR, *BETAS, DECAY, p, p, s),
        "Adagrad": lambda: cpu_adagrad().adagrad_update(0, 1, LR, EPS, DECAY, p, p, s),
    }
    with pytest.raises(RuntimeError, match=f"{optimizer} optimizer .* not supported on current hardware"):
        calls[optimizer]()


def test_cpu_optimizers_compute_nothing_and_take_numbers_alone() -> None:
    op, p, g, s = cpu_adam(), torch.ones(4), torch.ones(4), torch.zeros(4)
    assert op.create_adam(0, LR, *BETAS, EPS, DECAY, True, False) == 0
    assert op.adam_update(0, 1, LR, *BETAS, EPS, DECAY, True, p, g, s, s) == 0
    assert torch.equal(p, torch.ones(4))
    assert not s.any()
    settings = (3, LR, *BETAS, EPS, 0.0, True)
    assert [op.adam_rollback(0, *settings, one, g, s, s) for one in (p, p.bfloat16())] == [0, -1]
    with pytest.raises(TypeError, match="is no number"):
        op.create_adam(0, "1e-4", *BETAS, EPS, DECAY, True, False)
    with pytest.raises(TypeError, match=r"create_adam\(\) takes 8 arguments, got 2; missing: \w+, \w+"):
        op.create_adam(0, LR)


class _OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def _on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(_OnGpu)


def test_fused_lamb_refuses_what_the_kernel_refuses() -> None:
    rest = (LR, *BETAS, 10.0, 0.01, EPS, 1.0, 1, 1, 1, DECAY)
    large, none = _on_gpu(torch.empty(2**31, device="meta")), torch.empty(0, device="meta")
    with pytest.raises(RuntimeError, match="too large"):
        fused_lamb().lamb(large, none, large, large, large, *rest)
    small, half = (_on_gpu(torch.empty(8, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16))
    with pytest.raises(NotImplementedError, match="not implemented for"):
        fused_lamb().lamb(small, none, small, small, half, *rest)


def test_fused_optimizers_check_their_lists() -> None:
    strided, two = _on_gpu(torch.zeros(8, 8)[:, ::2]), _on_gpu(torch.zeros(2))
    for lists, message in (([[strided]] * 4, "not contiguous"), ([[torch.zeros(2)]] * 4, "on cuda")):
        with pytest.raises(RuntimeError, match=message):
            check_lists(lists)
    rest = (LR, *BETAS, EPS, 1, 1, 1, DECAY)
    fused_optimizers.fused_adam().multi_tensor_adam(65536, torch.zeros(1), [[two]] * 4, *rest)
    assert not two.any()


def test_zenflow_steps_when_submitted_and_is_waited_for_once() -> None:
    updates: list[tuple[Any, ...]] = []

    def adam_update(*arguments: Any) -> int:
        updates.append(arguments)
        arguments[8].fill_(-LR)
        return 0

    p, stale, unused = torch.zeros(4), torch.full((4,), 9.0), torch.full((4,), 5.0)
    states = [torch.zeros(4) for _ in range(4)]
    group = Group(p, [(unused, *states[::2]), (torch.ones(4), *states[1::2])], stale)
    op = ZenFlowAdam(adam_update, -1, [group])
    assert not op.zenflow_adam_wait(0, 0.0)
    op.zenflow_adam_submit(0, 1, 1, [LR], [0.9], [0.999], [EPS], [0.0], [1])
    assert op.zenflow_adam_wait(0, 0.0)
    assert not op.zenflow_adam_wait(0, 0.0)
    ((number, step, *scalars, param, grad, first, second),) = updates
    assert (number, step, scalars) == (-1, 1, [LR, 0.9, 0.999, EPS, 0.0, 1])
    assert param is p
    assert torch.equal(grad, torch.ones(4))  # state 1 was stepped, not state 0
    assert (first is states[1], second is states[3]) == (True, True)
    torch.testing.assert_close(stale, torch.full((4,), -LR))

"""Stand-ins for compiled optimizers: their arithmetic, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.arithmetic import CHUNK_ELEMENTS
from zerokit.rehearsal.stand_ins.cpu_optimizers import cpu_adagrad, cpu_adam, cpu_lion
from zerokit.rehearsal.stand_ins.fused_optimizers import fused_adam, fused_lamb, fused_lion

STEPS = 5
ELEMENTS = 1000
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.999), 1e-8, 0.1


def _gradients(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ELEMENTS, generator=generator).to(dtype) for _ in range(STEPS)]


def _start(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)).to(dtype)


def _by_torch(optimizer_class: type[torch.optim.Optimizer], **settings: object) -> Tensor:
    parameter = torch.nn.Parameter(_start())
    optimizer = optimizer_class([parameter], **settings)  # type: ignore[arg-type]
    for gradient in _gradients():
        parameter.grad = gradient
        optimizer.step()
    return parameter.detach()


def _close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("decoupled", [True, False])
def test_fused_adam_is_adam(decoupled: bool) -> None:
    op = fused_adam(compute=True, device_type="cpu")
    p, m, v = _start(), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    flag = torch.zeros(1, dtype=torch.int32)
    for step, g in enumerate(_gradients(), start=1):
        lists = [[g], [p], [m], [v]]
        op.multi_tensor_adam(65536, flag, lists, LR, *BETAS, EPS, step, int(decoupled), 1, DECAY)
    reference = torch.optim.AdamW if decoupled else torch.optim.Adam
    _close(p, _by_torch(reference, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY))


@pytest.mark.parametrize("decoupled", [True, False])
def test_cpu_adam_is_adam(decoupled: bool) -> None:
    op = cpu_adam(compute=True)
    op.create_adam(7, LR, *BETAS, EPS, DECAY, decoupled, False)
    p, m, v = _start(), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for step, g in enumerate(_gradients(), start=1):
        assert op.adam_update(7, step, LR, *BETAS, EPS, DECAY, True, p, g, m, v) == 0
    reference = torch.optim.AdamW if decoupled else torch.optim.Adam
    _close(p, _by_torch(reference, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cpu_adam_calculates_half_precision_parameters_in_float32(dtype: torch.dtype) -> None:
    op = cpu_adam(compute=True)
    op.create_adam(0, LR, *BETAS, EPS, 0.0, True, False)
    p, m, v = _start(dtype), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    g = _gradients(dtype)[0]
    op.adam_update(0, 1, LR, *BETAS, EPS, 0.0, True, p, g, m, v)
    # After one step m / (1 - beta1) is g and sqrt(v / (1 - beta2)) is |g|: the update is the sign.
    expected = (_start(dtype).float() - LR * g.float() / (g.float().abs() + EPS)).to(dtype)
    torch.testing.assert_close(p, expected, rtol=torch.finfo(dtype).eps, atol=0)
    assert m.dtype == torch.float32


def test_cpu_adam_rollback_undoes_an_update() -> None:
    op = cpu_adam(compute=True)
    op.create_adam(0, LR, *BETAS, EPS, DECAY, True, False)
    p, m, v = _start(), torch.full((ELEMENTS,), 0.5), torch.full((ELEMENTS,), 0.25)
    before = [tensor.clone() for tensor in (p, m, v)]
    g = _gradients()[0]
    settings = (3, LR, *BETAS, EPS, 0.0, True)
    op.adam_update(0, *settings, p, g, m, v)
    assert not torch.equal(p, before[0])
    assert op.adam_rollback(0, *settings, p, g, m, v) == 0
    for tensor, old in zip((p, m, v), before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=1e-4, atol=1e-5)
    half = p.bfloat16()
    assert op.adam_rollback(0, *settings, half, g, m, v) == -1


@pytest.mark.parametrize(
    ("params", "state"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float32)]
)
def test_cpu_optimizers_refuse_the_types_that_the_compiled_ones_refuse(
    params: torch.dtype, state: torch.dtype
) -> None:
    op = cpu_adam(compute=False)
    op.create_adam(0, LR, *BETAS, EPS, DECAY, True, False)
    p, s = torch.zeros(4, dtype=params), torch.zeros(4, dtype=state)
    with pytest.raises(RuntimeError, match="not supported on current hardware"):
        op.adam_update(0, 1, LR, *BETAS, EPS, DECAY, True, p, p, s, s)


def test_settings_must_be_numbers() -> None:
    op = cpu_adam(compute=False)
    with pytest.raises(TypeError):
        op.create_adam(0, "1e-4", *BETAS, EPS, DECAY, True, False)


def test_cpu_adagrad_is_adagrad() -> None:
    op = cpu_adagrad(compute=True)
    op.create_adagrad(0, LR, 1e-10, DECAY, False)
    p, v = _start(), torch.zeros(ELEMENTS)
    for step, g in enumerate(_gradients(), start=1):
        op.adagrad_update(0, step, LR, 1e-10, DECAY, p, g, v)
    _close(p, _by_torch(torch.optim.Adagrad, lr=LR, eps=1e-10, weight_decay=DECAY))


def _lion_by_the_paper() -> tuple[Tensor, Tensor]:
    """Algorithm 2 of arXiv 2302.06675, in float64."""
    p, m = _start().double(), torch.zeros(ELEMENTS, dtype=torch.float64)
    beta1, beta2 = BETAS
    for gradient in _gradients():
        g = gradient.double()
        update = torch.sign(beta1 * m + (1 - beta1) * g)
        p = p - LR * (update + DECAY * p)
        m = beta2 * m + (1 - beta2) * g
    return p, m


def test_both_lions_are_lion() -> None:
    fused, host = fused_lion(compute=True, device_type="cpu"), cpu_lion(compute=True)
    host.create_lion(0, LR, *BETAS, DECAY, False)
    fused_p, fused_m, host_p, host_m = _start(), torch.zeros(ELEMENTS), _start(), torch.zeros(ELEMENTS)
    for step, g in enumerate(_gradients(), start=1):
        lists = [[g], [fused_p], [fused_m]]
        fused.multi_tensor_lion(65536, torch.zeros(1), lists, LR, *BETAS, step, DECAY)
        host.lion_update(0, step, LR, *BETAS, DECAY, host_p, g, host_m)
    p, m = _lion_by_the_paper()
    for actual in (fused_p, host_p):
        _close(actual, p)
    for actual in (fused_m, host_m):
        torch.testing.assert_close(actual, m.float(), rtol=1e-4, atol=1e-6)


def test_lions_disagree_about_a_direction_of_zero_as_the_compiled_ones_do() -> None:
    fused, host = fused_lion(compute=True, device_type="cpu"), cpu_lion(compute=True)
    zero, up, down = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    fused.multi_tensor_lion(65536, zero, [[zero], [up], [zero.clone()]], LR, *BETAS, 1, 0.0)
    host.lion_update(0, 1, LR, *BETAS, 0.0, down, zero, zero.clone())
    assert up.item() > 0 > down.item()


def test_fused_lamb_scales_each_tensor_by_its_trust_ratio() -> None:
    op = fused_lamb(compute=True, device_type="cpu")
    p, m, v = _start(), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    g = _gradients()[0]
    coefficient = op.lamb(p, torch.empty(0), m, v, g, LR, *BETAS, 10.0, 0.01, EPS, 2.0, 1, 1, 0, DECAY)
    start, half = _start().double(), g.double() / 2
    update = 0.1 * half / ((0.001 * half**2).sqrt() + EPS) + DECAY * start
    ratio = float(start.norm() / update.norm())
    assert coefficient.item() == pytest.approx(ratio, rel=1e-4)
    torch.testing.assert_close(p.double(), start - LR * ratio * update, rtol=1e-4, atol=1e-5)
    limited = op.lamb(p, torch.empty(0), m, v, g, LR, *BETAS, 0.05, 0.01, EPS, 1.0, 2, 1, 1, DECAY)
    assert limited.item() == pytest.approx(0.05)


def test_fused_lamb_refuses_what_the_kernel_refuses() -> None:
    op = fused_lamb(compute=False, device_type="meta")
    rest = (LR, *BETAS, 10.0, 0.01, EPS, 1.0, 1, 1, 1, DECAY)
    large, none = torch.empty(2**31, device="meta"), torch.empty(0, device="meta")
    with pytest.raises(RuntimeError, match="too large"):
        op.lamb(large, none, large, large, large, *rest)
    small, half = torch.empty(8, device="meta"), torch.empty(8, device="meta", dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        op.lamb(small, none, small, small, half, *rest)


def test_pieces_cover_large_tensors() -> None:
    op = cpu_lion(compute=True)
    size = CHUNK_ELEMENTS + 3
    p = torch.zeros(size)
    op.lion_update(0, 1, 1.0, *BETAS, 0.0, p, torch.ones(size), torch.zeros(size))
    assert torch.equal(p, -torch.ones(size))


def test_without_values_nothing_changes() -> None:
    p, m, v, g = _start(), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS), _gradients()[0]
    op = fused_adam(compute=False, device_type="cpu")
    op.multi_tensor_adam(65536, torch.zeros(1), [[g], [p], [m], [v]], LR, *BETAS, EPS, 1, 1, 1, DECAY)
    host = cpu_adam(compute=False)
    host.create_adam(0, LR, *BETAS, EPS, DECAY, True, False)
    host.adam_update(0, 1, LR, *BETAS, EPS, DECAY, True, p, g, m, v)
    assert torch.equal(p, _start())
    assert not m.any()
    assert not v.any()


def test_fused_adam_checks_its_lists() -> None:
    op = fused_adam(compute=False, device_type="cpu")
    rest = (LR, *BETAS, EPS, 1, 1, 1, DECAY)
    strided = torch.zeros(8, 8)[:, ::2]
    with pytest.raises(RuntimeError, match="not contiguous"):
        op.multi_tensor_adam(65536, torch.zeros(1), [[strided]] * 4, *rest)
    with pytest.raises(RuntimeError, match="Size mismatch"):
        op.multi_tensor_adam(65536, torch.zeros(1), [[torch.zeros(2)]] * 3 + [[torch.zeros(3)]], *rest)
    with pytest.raises(RuntimeError, match="on cuda"):
        fused_adam(compute=False).multi_tensor_adam(65536, torch.zeros(1), [[torch.zeros(2)]] * 4, *rest)


def test_zenflow_steps_when_submitted_and_is_waited_for_once() -> None:
    op = cpu_adam(compute=True)
    op.create_adam(-1, LR, *BETAS, EPS, 0.0, True, False)
    handle = op.zenflow_adam_create(-1, [])
    p, stale, unused = torch.zeros(4), torch.full((4,), 9.0), torch.full((4,), 5.0)
    states = [torch.zeros(4) for _ in range(4)]
    op.zenflow_adam_register_group(handle, p, unused, torch.ones(4), *states, stale)
    control = torch.zeros(op.zenflow_adam_ctrl_size(), dtype=torch.uint8)
    op.zenflow_adam_ctrl_init(control.data_ptr(), 1)
    op.zenflow_adam_run_worker(handle, control.data_ptr())
    assert not op.zenflow_adam_wait(control.data_ptr(), 0.0)
    op.zenflow_adam_submit(control.data_ptr(), 1, 1, [LR], [0.9], [0.999], [EPS], [0.0], [1])
    assert op.zenflow_adam_wait(control.data_ptr(), 0.0)
    assert not op.zenflow_adam_wait(control.data_ptr(), 0.0)
    torch.testing.assert_close(stale, torch.full((4,), -LR))
    first, second = states[0], states[1]
    assert not first.any()  # state 1 was stepped, not state 0
    assert second.all()

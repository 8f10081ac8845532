"""Stand-ins for compiled ops: their arithmetic, their allocations, and what has no stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import torch
from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap, met_gaps
from zerokit.rehearsal.stand_ins import async_io
from zerokit.rehearsal.stand_ins.arithmetic import CHUNK_ELEMENTS
from zerokit.rehearsal.stand_ins.device_optimizers import fused_adam, fused_lamb, fused_lion
from zerokit.rehearsal.stand_ins.host_optimizers import cpu_adagrad, cpu_adam, cpu_lion
from zerokit.rehearsal.stand_ins.optimizer_process import LockStep
from zerokit.rehearsal.stand_ins.page_locked import PageLockedMemory, torch_pinned
from zerokit.rehearsal.stand_ins.quantizer import fp_quantizer, quantizer
from zerokit.rehearsal.stand_ins.triton_kernels import kernel_name

STEPS = 5
ELEMENTS = 1000
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.999), 1e-8, 0.1

# ---------------------------------------------------------------- optimizers


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


# ---------------------------------------------------------------- ZenFlow and SuperOffload


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


def test_the_worker_runs_only_while_it_is_waited_for() -> None:
    context = LockStep()
    tasks, results = context.SimpleQueue(), context.SimpleQueue()
    order: list[str] = []

    def work() -> None:
        while (task := tasks.get()) is not None:
            order.append(f"worked on {task}")
            results.put(task * 2)

    worker = context.Process(target=work, daemon=True)
    worker.start()
    for task in (1, 2):
        order.append(f"asked for {task}")
        tasks.put(task)
    assert order == ["asked for 1", "worked on 1", "asked for 2", "worked on 2"]
    assert [results.get(), results.get()] == [2, 4]
    with pytest.raises(RuntimeError, match="nothing to get"):
        results.get()
    tasks.put(None)
    worker.join(60)
    assert not worker.is_alive()
    tasks.put(3)  # to a worker that has ended: nobody hangs


# ---------------------------------------------------------------- NVMe


def _modules(*, compute: bool) -> dict[str, ModuleType]:
    return async_io.modules(compute=compute, allocate=torch_pinned)


@pytest.fixture
def locked() -> Iterator[Callable[[], int]]:
    """Counts the bytes that the page-locked allocator has handed out and that still live."""
    import weakref

    alive: dict[int, int] = {}

    def allocate(num_bytes: int) -> Tensor:
        tensor = torch.empty(num_bytes, dtype=torch.uint8)
        storage = tensor.untyped_storage()
        alive[id(storage)] = num_bytes
        weakref.finalize(storage, alive.pop, id(storage))
        return tensor

    modules = async_io.modules(compute=False, allocate=allocate)
    locked_bytes = lambda: sum(alive.values())  # noqa: E731
    locked_bytes.modules = modules  # type: ignore[attr-defined]
    yield locked_bytes
    async_io.ledger().clear()


def test_values_go_to_the_file_and_come_back(tmp_path: Path) -> None:
    handle = _modules(compute=True)["async_io"].aio_handle(intra_op_parallelism=2)
    file = str(tmp_path / "state.swp")
    sent = torch.arange(1024, dtype=torch.float32).to(torch.bfloat16)
    assert handle.async_pwrite(sent, file, 4096) == 0
    assert handle.async_pwrite(sent * 2, file, 0) == 0
    assert handle.wait() == 2
    assert Path(file).stat().st_size == 4096 + 2048
    pinned = handle.new_cpu_locked_tensor(1024, sent)
    assert handle.sync_pread(pinned, file, 4096) == 1
    assert torch.equal(pinned, sent)
    through_bounce_buffer = torch.zeros(32, 32, dtype=torch.bfloat16)
    assert handle.async_pread(through_bounce_buffer, file) == 0
    assert handle.wait() == 1
    assert torch.equal(through_bounce_buffer.view(-1), sent * 2)


def test_without_values_the_ledger_stands_for_the_disk(tmp_path: Path) -> None:
    handle = _modules(compute=False)["async_io"].aio_handle()
    file, buffer = str(tmp_path / "state.swp"), torch.ones(256)
    for _ in range(3):
        assert handle.sync_pwrite(buffer, file) == 1
    assert handle.sync_pread(buffer, file, 0) == 1
    assert torch.equal(buffer, torch.ones(256))
    assert not Path(file).exists()
    ledger = async_io.ledger()
    assert (ledger.file_bytes, ledger.written_bytes, ledger.read_bytes) == ({file: 1024}, 3072, 1024)
    assert ledger.per_node_bytes(8) == 8192


def test_transfers_fail_as_the_compiled_ones_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = _modules(compute=False)["async_io"].aio_handle(intra_op_parallelism=4)
    buffer = torch.zeros(256, dtype=torch.uint8)
    assert handle.async_pwrite(buffer, str(tmp_path / "missing" / "file")) == -1
    assert handle.async_pread(buffer, str(tmp_path / "nothing")) == -1
    assert handle.async_pwrite(buffer[:255], str(tmp_path / "file")) == -1
    errors = capsys.readouterr().err.splitlines()
    for line, reason in zip(errors, ("folder", "no such file", "intra_op_parallelism = 4"), strict=True):
        assert reason in line
    assert handle.sync_pwrite(buffer, str(tmp_path / "file")) == 1
    with pytest.raises(RuntimeError, match="of a file of 256 bytes"):
        handle.async_pread(buffer, str(tmp_path / "file"), 4)
    assert handle.wait() == 0
    async_io.ledger().make_folder(str(tmp_path / "missing"))
    assert handle.sync_pwrite(buffer, str(tmp_path / "missing" / "file")) == 1


def test_unpinned_memory_is_bounced_until_it_is_waited_for(locked: Callable[[], int], tmp_path: Path) -> None:
    handle = locked.modules["async_io"].aio_handle()  # type: ignore[attr-defined]
    pinned = handle.new_cpu_locked_tensor(256, torch.empty(0))
    assert locked() == 1024
    handle.async_pwrite(pinned[64:], str(tmp_path / "pinned"))
    assert locked() == 1024
    handle.async_pwrite(torch.zeros(512), str(tmp_path / "pageable"))
    assert locked() == 1024 + 2048
    assert handle.wait() == 2
    assert locked() == 1024
    assert handle.free_cpu_locked_tensor(pinned)
    del pinned
    assert locked() == 0


def test_locked_memory_outlives_its_tensor_and_is_shared_by_the_ops(locked: Callable[[], int]) -> None:
    modules: dict[str, ModuleType] = locked.modules  # type: ignore[attr-defined]
    pins, handle = modules["pin_memory"].pin_handle(), modules["gds"].gds_handle()
    tensor = pins.new_cpu_locked_tensor(100, torch.empty(0, dtype=torch.int16))
    address = tensor.data_ptr()
    assert handle.is_pinned(tensor[10:])
    assert not handle.is_pinned(torch.zeros(100))
    del tensor
    assert locked() == 200
    assert pins.free_cpu_locked_tensor_by_ptr(address)
    assert locked() == 0
    assert not pins.free_cpu_locked_tensor_by_ptr(address)


def test_a_tensor_that_reaches_past_locked_memory_is_not_pinned() -> None:
    memory = PageLockedMemory()
    tensor = memory.new(16, torch.float32)
    neighbour = torch.empty(0).set_(tensor.untyped_storage(), 0, (16,), (1,))
    assert memory.owns(neighbour[3:9])
    assert not memory.owns(torch.empty(16))


# ---------------------------------------------------------------- gaps


def test_quantisation_has_no_arithmetic() -> None:
    op = quantizer(compute=True)
    with pytest.raises(RehearsalGap, match=r"quantizer\.quantize on real values") as raised:
        op.quantize(torch.zeros(8), 1, 8, op.Symmetric)
    assert "test_stand_ins.py" in str(raised.value)
    assert raised.value in met_gaps()


def test_fp_quantizer_scales_are_a_view() -> None:
    op = fp_quantizer(compute=False)
    quantized = torch.zeros(3, 12, dtype=torch.uint8)
    scales = op.get_scales(quantized, 3)
    assert scales.shape == (3, 1)
    quantized[1].view(torch.float32)[0] = 2.5
    assert scales.view(-1).tolist() == [0.0, 2.5, 0.0]


def test_kernel_names_are_found_under_their_decorators() -> None:
    class Jit:
        def __init__(self, fn: object) -> None:
            self.fn = fn

    assert kernel_name(Jit(Jit(_close))) == ("_close", __name__)


def _run(code: str, tmp_path: Path, **environment: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(dedent(code))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(Path.cwd())} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_deepspeed_uses_the_stand_ins_and_starts_no_compiler(tmp_path: Path) -> None:
    printed = _run(
        """
        import torch
        from zerokit.rehearsal import stand_ins
        from zerokit.rehearsal.errors import RehearsalGap, met_gaps
        stand_ins.install(compute=True)
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.ops.op_builder import AsyncIOBuilder, FusedAdamBuilder, UtilsBuilder
        from deepspeed.ops.op_builder.evoformer_attn import EvoformerAttnBuilder
        from deepspeed.ops.op_builder.random_ltd import RandomLTDBuilder

        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        DeepSpeedCPUAdam([parameter], lr=0.25).step()
        print("stepped", parameter.tolist())
        print("bytes", UtilsBuilder().load().cast_to_byte_tensor(torch.ones(2)).shape[0])
        print("handle", AsyncIOBuilder().load().aio_handle().get_block_size())
        print("compatible", FusedAdamBuilder().is_compatible(), EvoformerAttnBuilder().is_compatible())
        try:
            RandomLTDBuilder().load()
        except RehearsalGap as gap:
            print("gap", gap)
        print("met", len(met_gaps()))
        """,
        tmp_path,
    )
    lines = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
    assert lines["stepped"] == "[0.75, 0.75, 0.75]"
    assert (lines["bytes"], lines["handle"], lines["compatible"]) == ("8", "1048576", "True False")
    assert "script.py:22" in lines["gap"]
    assert "'random_ltd'" in lines["gap"]
    assert lines["met"] == "1"


def test_superoffload_runs_its_worker_here(tmp_path: Path) -> None:
    printed = _run(
        """
        import os, torch
        from zerokit.rehearsal import stand_ins
        stand_ins.install(compute=True)
        from deepspeed.runtime.superoffload.superoffload_utils import SuperOffloadCPUOptimizer

        cores = os.sched_getaffinity(0)
        config = {"lr": 0.25, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
        optimizer = SuperOffloadCPUOptimizer(config, max_grad_numel=4, pin_memory=False)
        parameter = torch.ones(4)
        for _ in range(2):
            optimizer.async_step(0, 0, parameter, torch.ones(4))
            result = optimizer.get_result("adam_step")
        print("updated", parameter.tolist(), result["updated_param"].data_ptr() == parameter.data_ptr())
        optimizer.async_step(0, 0, parameter, torch.ones(4), rollback=True)
        print("rolled back", [round(value, 4) for value in parameter.tolist()])
        print("cores", os.sched_getaffinity(0) == cores)
        optimizer.async_step(0, 0, parameter, torch.ones(5))
        try:
            optimizer.get_result()
        except RuntimeError as error:
            print("error", error)
        """,
        tmp_path,
    )
    lines = printed.splitlines()
    assert "updated [0.5, 0.5, 0.5, 0.5] True" in lines
    assert "rolled back [0.75, 0.75, 0.75, 0.75]" in lines
    assert "cores True" in lines
    assert any("exceeds pre-allocated buffer size 4" in line for line in lines)


def test_zero3_on_nvme_books_what_deepspeed_writes(tmp_path: Path) -> None:
    """Each element of this rank: three float32 (parameter, moments) and, in large parameters, a bf16 copy."""
    printed = _run(
        """
        from zerokit.rehearsal.cluster import virtual_cluster
        with virtual_cluster(4) as cluster:
            import deepspeed, torch
            from zerokit.rehearsal.stand_ins import async_io
            nvme = {"device": "nvme", "nvme_path": "/no/such/disk", "pin_memory": True}
            config = {
                "train_micro_batch_size_per_gpu": 1,
                "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                "zero_optimization": {
                    "stage": 3,
                    "offload_optimizer": nvme | {"buffer_count": 4},
                    "offload_param": nvme | {"buffer_count": 2, "buffer_size": 1 << 22},
                },
            }
            with deepspeed.zero.Init(config_dict_or_path=config):
                model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(3)))
            engine, *_ = deepspeed.initialize(model=model, config=config)
            for _ in range(2):
                engine.backward(engine(torch.zeros(4, 2048, device="cuda", dtype=torch.bfloat16)).sum())
                engine.step()
            print("ledger", *sorted(async_io.ledger().file_bytes.values()))
        """,
        tmp_path,
        DS_ACCELERATOR="cuda",
    )
    (ledger,) = (line for line in printed.splitlines() if line.startswith("ledger"))
    per_rank = 2048 * 2048 // 4
    gradient_and_states = [4 * 3 * per_rank] * 3
    sizes = sorted(int(size) for size in ledger.split()[1:])
    assert sizes[:3] == [2 * per_rank] * 3
    assert sizes[-3:] == gradient_and_states
    assert not Path("/no/such/disk").exists()

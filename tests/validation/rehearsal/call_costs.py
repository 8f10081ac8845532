"""Single calls on the virtual device with a clock: which costs they ask for, and what they wait for.

Every call has sizes of its own, since a cost is asked for once.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.validation.rehearsal.fixed_costs import FixedCosts

PeftSettings = dict[str, list[tuple[Any, ...]]]


_HOST = ("launch", "collective_launch", "cuda_malloc")


def asked(rank: Any, costs: FixedCosts) -> PeftSettings:
    """By call: all costs but those of launches."""
    import torch
    import torch.distributed as dist
    from deepspeed.ops.op_builder import QuantizerBuilder
    from torch.nn.functional import conv_transpose2d, scaled_dot_product_attention

    import zerokit
    from zerokit.distributed.cores import use_all_cores
    from zerokit.rehearsal.stand_ins import flash_attention_norms, flash_attention_rotary
    from zerokit.rehearsal.stand_ins.bitsandbytes import _do_nothing

    def half(*sizes: int) -> Any:
        return torch.empty(sizes, dtype=torch.bfloat16, device="cuda")

    def single(*sizes: int, **where: Any) -> Any:
        return torch.empty(sizes, **({"device": "cuda"} | where))

    def in_tf32() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            torch.mm(single(8, 16), single(16, 24))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    def in_a_thread(call: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=call, args=arguments)
        thread.start()
        thread.join()

    def on_host(*sizes: int) -> Any:
        return single(*sizes, device="cpu")

    image, kernel = half(2, 6, 10, 10), half(6, 4, 3, 3)
    norm, head = half(32, 64), torch.empty(128, dtype=torch.float32, device="cpu")
    quantizer = QuantizerBuilder().load()
    own: dict[str, Any] = {}
    exec(compile("def call(tensor):\n    tensor.mul_(2)", zerokit.__file__, "exec"), own)
    calls = {
        "product": lambda: torch.mm(half(64, 32), half(32, 16)),
        "product by a transposed": lambda: torch.mm(half(64, 32), half(48, 32).t()),
        "product into nothing yet": lambda: torch.mm(half(7, 9), half(9, 11), out=half(0)),
        "sum into nothing yet": lambda: torch.add(half(40), half(40), out=half(0)),
        "in fp32": lambda: torch.mm(single(8, 16), single(16, 32)),
        "in TF32": in_tf32,
        "attention": lambda: scaled_dot_product_attention(half(2, 4, 32, 64), half(2, 4, 48, 64), half(2, 4, 48, 64)),
        "transposed convolution": lambda: conv_transpose2d(image, kernel),
        "to the device": lambda: single(130).copy_(single(130, device="cpu")),
        "to the device, converted": lambda: half(128).copy_(head),
        "to the device, converted there": lambda: half(132).copy_(
            single(132, device="cpu", pin_memory=True), non_blocking=True
        ),
        "to the host, converted": lambda: head.copy_(half(128)),
        "unscaled on the host": lambda: on_host(300_000).mul_(0.5),
        "norm on the host": lambda: torch.linalg.vector_norm(on_host(310_000)),
        "cast on the host": lambda: on_host(320_000).to(torch.bfloat16),
        "copied on the host": lambda: on_host(330_000).copy_(on_host(330_000)),
        "seen otherwise on the host": lambda: on_host(340_000).view(100, -1).t()[:5],
        "on the host, by zerokit": lambda: own["call"](on_host(350_000)),
        "by the script's threads": lambda: (torch.set_num_threads(3), on_host(360_000).neg_()),
        "once more, by the script's threads": lambda: on_host(300_000).mul_(0.5),
        "beside a loader's thread": lambda: (in_a_thread(torch.set_num_threads, 1), on_host(370_000).neg_()),
        "reduce": lambda: dist.reduce(half(100), 0),
        "gather": lambda: dist.all_gather_into_tensor(half(800), half(100)),
        "norm": lambda: flash_attention_norms.rms_norm_fn(norm, half(64), None),
        "rotary": lambda: flash_attention_rotary.apply_rotary_emb(half(1, 8, 2, 16), None, None, inplace=True),
        "quantizer": lambda: quantizer.quantize(half(256), 4, 8, quantizer.Symmetric),
    }
    found = {}
    for name, call in calls.items():
        costs.asked.clear()
        call()
        found[name] = [one for one in costs.asked if one[0] not in _HOST]
    os.environ.pop("OMP_NUM_THREADS", None)
    use_all_cores()
    found["with all cores"] = rank.host_threads
    _do_nothing()
    found["without_cost"] = sorted(rank.without_cost)
    return found


def offloaded_step(costs: FixedCosts) -> list[tuple[Any, ...]]:
    """What a step of ZeRO-2 with Adam on the host asks of the host for one weight of 1000 by 1000.

    Without single numbers and flags.
    """
    import deepspeed
    import torch

    model = torch.nn.Linear(1000, 1000, bias=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    costs.asked.clear()
    engine.backward(engine(torch.empty(1, 1000, dtype=torch.bfloat16, device="cuda")).sum())
    engine.step()
    return [one for one in costs.asked if one[0] in ("on_host", "cpu_adam") and one[1] > 10_000]


def host_work(rank: Any, costs: FixedCosts) -> dict[str, int]:
    """Nanoseconds of the host, where a call of a function that is new takes 1000 and a node of autograd 1."""
    import _thread

    import deepspeed
    import torch
    from deepspeed.utils import nvtx

    import zerokit

    clock = rank.time.clock

    def leaf() -> None:
        pass

    def branch() -> None:
        for _ in range(3):
            leaf()

    def in_thread(work: Any) -> None:
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(lambda: (work(), done.release()), ())
        done.acquire()

    def untimed() -> None:
        with clock.untimed():
            branch()

    def spent(work: Any) -> int:
        start = clock.now
        work()
        return int(clock.now - start)

    def graph() -> Any:
        return weight.mul(2).sum()

    def seen_around(unseen: Any) -> None:
        weight.mul(2)
        with unseen():
            graph()
        weight.mul(2)

    weight = torch.ones(8, device="cuda", requires_grad=True)
    graph().backward()  # its functions are not new from here on
    nodes = {"nodes made": spent(graph)}
    costs.working = 1e-9
    values = torch.empty(500_000, requires_grad=True)
    nodes["on the host"] = spent(lambda: values.detach().mul_(2))
    nodes["on the host, in a thread"] = spent(functools.partial(in_thread, lambda: values.detach().neg_()))
    costs.working = 0.0
    loss = graph()
    nodes["nodes run"] = spent(loss.backward)
    left, right = (torch.empty(sizes, device="cuda") for sizes in ((88, 40), (40, 72)))
    torch.cuda.synchronize()
    costs.waits = True
    nodes["a product of the processor's"] = spent(lambda: torch.mm(left, right))
    costs.waits = False
    own: dict[str, Any] = {}
    exec(compile("def call(work):\n    work()", zerokit.__file__, "exec"), own)
    beside: dict[str, Any] = {}
    script = f"{Path(zerokit.__file__).parent}-experiments/train.py"
    exec(compile("def call(work):\n    work()", script, "exec"), beside)
    engine: dict[str, Any] = {}
    exec(compile("def call(work):\n    work()", deepspeed.__file__, "exec"), engine)
    measured: dict[str, Any] = {"work": branch, "tensor": torch.ones(8, device="cuda")}
    body = (
        "def instrument_w_nvtx():\n    def wrapped_fn():\n        work()\n        tensor.neg()\n    return wrapped_fn"
    )
    exec(compile(body, nvtx.__file__, "exec"), measured)
    for name, unseen in (("untimed nodes", clock.untimed), ("uncounted nodes", rank.backend.uncounted)):
        nodes[name] = spent(functools.partial(seen_around, unseen))
    costs.calling = 1e-6

    class Walked:
        def named_parameters(self) -> list[Any]:
            branch()
            return []

    library = compile("work()", deepspeed.__file__, "exec")
    many: dict[str, Any] = {}
    exec("".join(f"def f{number}(): pass\n" for number in range(20_000)), many)

    rank.labels.engines.append(SimpleNamespace(module=Walked(), optimizer=None))
    calls = {
        "four calls": spent(branch),
        "by zerokit": spent(lambda: own["call"](branch)),
        "beside zerokit": spent(lambda: beside["call"](branch)),
        "by DeepSpeed": spent(lambda: engine["call"](branch)),
        "by a measured function": spent(measured["instrument_w_nvtx"]()),
        "in a thread": spent(lambda: in_thread(branch)),
        "untimed": spent(untimed),
        "labels": spent(lambda: rank.labels.on_engine_step_end(None)),
        "an import": spent(lambda: exec(library, {"work": branch})),
    }
    for name, function in many.items():
        if name.startswith("f"):
            function()
    branch()
    calls["after many functions"] = spent(branch)
    rank.labels.engines.pop()
    costs.calling = 0.0
    return nodes | calls


def compiled(costs: FixedCosts) -> list[list[Any]]:
    """What is asked for by kernels that Inductor writes: of how many bytes, and the kinds of the kernels."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from torch.nn.functional import embedding

    def single(*sizes: int) -> Any:
        return torch.empty(sizes, device="cuda")

    def kernels(function: Any, *inputs: Any) -> list[Any]:
        torch._dynamo.reset()
        costs.asked.clear()
        torch.compile(function)(*inputs)
        found = [one for one in costs.asked if one[0] == "memory_bound" and one[2].startswith("triton")]
        return [[num_bytes, "_".join(name.split("_")[:2])] for _, num_bytes, name in found]

    rows, heads = torch.zeros(3, dtype=torch.int64, device="cuda"), single(1, 2, 128, 64)
    return [
        kernels(lambda tensor: (tensor * 2).sin() + 1, single(100, 10)),
        kernels(lambda table, which: embedding(which, table) + 1, single(5000, 16), rows),
        kernels(lambda tensor: tensor.softmax(-1), single(64, 512)),
        kernels(lambda tensor: tensor.mul_(2), single(30, 10)),
        kernels(flex_attention, heads, heads, heads),
    ]


def drives(rank_time: Any, costs: FixedCosts) -> dict[str, float]:
    """Seconds after two writes of one second each were asked for, after the host waited, and after a read.

    Of a step that asks for another write at its end, too.
    """
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    clock, costs.copying = rank_time.clock, 1.0
    handle = AsyncIOBuilder().load().aio_handle()
    memory = handle.new_cpu_locked_tensor(512, torch.empty(0, dtype=torch.float32))
    start, seen = clock.now, {}
    costs.asked.clear()
    for number in range(2):
        handle.async_pwrite(memory, f"/tmp/drive{number}")
    seen["asked for"] = (clock.now - start) / 1e9
    torch.cuda.synchronize()
    seen["synchronized"] = (clock.now - start) / 1e9
    handle.wait()
    seen["written"] = (clock.now - start) / 1e9
    handle.sync_pread(memory, "/tmp/drive0")
    seen["read"] = (clock.now - start) / 1e9
    seen["copies"] = [one for one in costs.asked if one[0] == "copy"]
    handle.async_pwrite(memory, "/tmp/drive0")
    rank_time.step_end_events.append(rank_time.record_events())
    seen["step"] = (rank_time.step_ends()[-1] - start) / 1e9
    costs.copying = 0.0
    return seen


def polling(clock: Any) -> dict[str, int]:
    """How often loops that wait for a second of the device's time ask, by what they ask."""
    import torch

    from zerokit.rehearsal.native.clock import WorkKind

    rounds = {}
    for name, event in {"torch.Event": torch.Event(device="cuda"), "cuda.Event": torch.cuda.Event()}.items():
        clock.submit(0, WorkKind.KERNEL, "a second", 1_000_000_000)
        event.record()
        rounds[name] = 0
        while not event.query() and rounds[name] < 50_000:
            rounds[name] += 1
            time.sleep(0)
        torch.cuda.synchronize()
    return rounds


def recomputed(backend: Any) -> dict[str, dict[str, list[float]]]:
    """Of checkpointed products with one gradient: all floating-point operations, and recomputed ones."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from zerokit.rehearsal.watching.phases import Recomputing

    recomputing = Recomputing(backend)
    recomputing.on_process_start()
    around = backend.phase

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(left)
            return torch.mm(left, right)

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> Any:
            return None, context.saved_tensors[0].T @ gradients[0]

    def count(phase: str, work: Any) -> Any:
        backend.phase = phase
        before = (backend.flops, recomputing.flops)
        result = work()
        counted[phase] = [backend.flops - before[0], recomputing.flops - before[1]]
        return result

    image = torch.empty(16, 24, device="cuda")
    seen: dict[str, dict[str, list[float]]] = {}
    for name, product, reentrant in (("operator", torch.mm, False), ("Function", Product.apply, True)):
        counted = seen[name] = {}
        weight = torch.empty(24, 32, device="cuda", requires_grad=True)
        layer = functools.partial(checkpoint, lambda w, by=product: by(image, w).square(), weight)
        out = count("forward", lambda layer=layer, how=reentrant: layer(use_reentrant=how))
        count("backward", lambda out=out: out.sum().backward())
    backend.phase = around
    return seen

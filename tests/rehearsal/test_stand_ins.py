"""Stand-ins inside DeepSpeed itself, and what has no stand-in."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PretrainedConfig

from tests import processes
from tests.rehearsal import forked_worker
from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY
from zerokit.errors import LaunchError
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.stand_ins import from_pretrained, torch_cuda
from zerokit.rehearsal.stand_ins.bitsandbytes import _Library
from zerokit.rehearsal.stand_ins.quantizers import quantizer
from zerokit.rehearsal.stand_ins.superoffload_process import LockStep
from zerokit.rehearsal.stand_ins.triton_kernels import kernel_name
from zerokit.rehearsal.stand_ins.triton_pointers import written_parameters


def test_a_wrong_call_of_a_quantizer_names_the_op_and_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"^quantize\(\) takes 4 .* got 2; missing: num_bits, quant_type$"):
        quantizer().quantize(torch.zeros(4), 1)
    with pytest.raises(TypeError, match=r"^dequantize_fp32\(\) takes 5 arguments, got 6$"):
        quantizer().dequantize_fp32(*range(6))


def test_torch_makes_generators_of_gpus_itself_until_it_asks_the_device_for_them() -> None:
    assert [torch_cuda._GENERATOR.is_for(version) for version in ("2.6.0+cu124", "2.7.0")] == [True, False]


class _Unet(torch.nn.Module):
    """Made of its config, as models of diffusers are."""

    _keep_in_fp32_modules = ("norm",)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.register_to_config = SimpleNamespace

    @classmethod
    def load_config(cls, path: str, *, return_unused_kwargs: bool, **given: Any) -> tuple[dict[str, int], Any]:
        return {"width": len(path)}, given

    @classmethod
    def from_config(cls, config: dict[str, int], **unused: Any) -> _Unet:
        return cls(**config)


def test_a_model_of_diffusers_is_made_of_its_config() -> None:
    def read_weights(*_: object, **given: object) -> str:
        return f"read with {', '.join(given)}"

    model, told = from_pretrained.build_from_config(
        read_weights, _Unet, pretrained_model_name_or_path="unet", torch_dtype=torch.float16, output_loading_info=True
    )
    assert (model.norm.weight.dtype, model.out.weight.dtype) == (torch.float32, torch.float16)
    assert (model.out.weight.shape, model.training) == ((4, 4), False)
    assert not any(told.values())
    found = from_pretrained.build_from_config(read_weights, _Unet, "unet", device_map="auto")
    assert found == "read with device_map"


def test_a_dtype_that_is_asked_for_is_the_models_and_not_its_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_pretrained, "made_up_tensor", lambda *_: None)

    class Config(PretrainedConfig):
        pass

    class Model:
        config_class = SimpleNamespace(
            from_pretrained=lambda source, return_unused_kwargs, **given: (Config(), {"seen": sorted(given)})
        )

    def load(_cls: object, _path: None, **given: Any) -> SimpleNamespace:
        return SimpleNamespace(config=given["config"], given=given)

    made = from_pretrained._with_given_weights(
        load, Model, "llama", torch_dtype="auto", quantization_config=None, use_cache=False
    )
    assert made.given["seen"] == ["use_cache"]
    assert (made.given["torch_dtype"], made.given["quantization_config"]) == ("auto", None)
    assert made.config.name_or_path == "llama"


def test_bitsandbytes_is_told_of_no_kernel_of_the_hub_for_this_cpu() -> None:
    library = _Library(SimpleNamespace(has_avx512bf16_cpu=lambda: True, cgemm_cpu=lambda: "computed"))
    assert not library.has_avx512bf16_cpu()
    assert library.cgemm_cpu() == "computed"


def test_transformers_4_reads_a_large_checkpoint_file_by_file() -> None:
    def load(model: object, checkpoint_files: list[str], sharded_metadata: dict[str, Any] | None = None) -> None:
        raise NotImplementedError

    def load_of_5(model: object, checkpoint_files: list[str], load_config: object) -> None:
        raise NotImplementedError

    sizes = (15, 15, 15, 2, 30)  # 10^8 elements of two bytes
    tensors = {
        f"layer.{number}": torch.empty(size * 10**8, dtype=torch.bfloat16, device="meta")
        for number, size in enumerate(sizes)
    }
    model = SimpleNamespace(config=SimpleNamespace(dtype=torch.bfloat16), state_dict=lambda keep_vars: tensors)
    bound = inspect.signature(load).bind(model, [from_pretrained.CHECKPOINT])
    shards = from_pretrained._split(bound, model)
    assert [[name[-1] for name in names] for names in shards.values()] == [["0"], ["1"], ["2", "3"], ["4"]]
    assert bound.arguments["checkpoint_files"] == list(shards)
    assert bound.arguments["sharded_metadata"]["all_checkpoint_keys"] == list(tensors)
    assert bound.arguments["sharded_metadata"]["weight_map"]["layer.4"] == list(shards)[3]
    of_gguf = inspect.signature(load).bind(model, ["model.gguf"])
    for other in (of_gguf, inspect.signature(load_of_5).bind(model, [from_pretrained.CHECKPOINT], 0)):
        before = dict(other.arguments)
        assert from_pretrained._split(other, model) == {}
        assert other.arguments == before


def test_a_torch_that_the_library_does_not_fit_is_told_in_one_line() -> None:
    backend = object.__new__(Backend)
    backend._library = SimpleNamespace(zk_take_over=lambda: b"Mismatch in kernel C++ signatures")
    with pytest.raises(LaunchError, match=r"does not fit torch \d.*: Mismatch in kernel.* torch 2\.5 to"):
        backend.take_over()


def test_kernel_names_are_found_under_their_decorators() -> None:
    class Jit:
        def __init__(self, fn: object) -> None:
            self.fn = fn

    assert kernel_name(Jit(Jit(_run))) == f"{__name__}._run"


tl: Any = None


def _add_one(out: Any, values: Any) -> None:
    tl.store(out, tl.load(values) + 1)


def _in_blocks(
    table: Any, block_in: Any, block_out: Any, described: Any, sums: Any, size: Any, apply: Any, inner: Any
) -> None:
    source = tl.make_block_ptr(base=block_in, shape=(size,))
    target = tl.make_block_ptr(base=block_out, shape=(size,))
    for place in range(0, size):
        value = apply(tl.load(source) + tl.load(table + place))
        tl.store(target, value)
        target = tl.advance(target, (place,))
        source = tl.advance(source, (place,))
    tl.make_tensor_descriptor(described, shape=[size]).store([0], value)
    tl.atomic_add(sums, tl.sum(value))
    inner(table + tl.program_id(0))


def _store_tile(value: Any, pointer: Any, size: Any) -> None:
    tl.store(pointer + tl.arange(0, size), value)


def _load_ptr(table: Any, place: Any) -> Any:
    return table + place


def _load_row(table: Any, place: Any) -> Any:
    return tl.load(table + place)


def _halve(pointer: Any, size: Any) -> None:
    if size > 1:
        halve(pointer, size // 2)
    tl.store(pointer, size)


_helpers = (_store_tile, _load_ptr, _load_row, _halve)
store_tile, load_ptr, load_row, halve = (SimpleNamespace(fn=helper) for helper in _helpers)


def _through_helpers(values: Any, first: Any, second: Any, third: Any, size: Any) -> None:
    value = load_row(values, size)
    store_tile(value, first, 8)
    address = load_ptr(second, 3)
    tl.store(address, value)
    tl.store(third + load_row(values, 0), value)


def _starred(value: Any, first: Any, second: Any, others: Any) -> None:
    store_tile(value, *(first, 8))
    addresses = (second, others)
    store_tile(*addresses)


def test_what_a_triton_kernel_writes_is_read_from_its_source() -> None:
    # Functions under @triton.jit are read, too, however they are named.
    assert written_parameters(_through_helpers) == {"first", "second", "third"}
    # A recursion is not followed.
    assert written_parameters(_halve) == {"pointer", "size"}
    assert written_parameters(_add_one) == {"out"}
    assert written_parameters(_starred) == {"first", "second", "others"}
    # A function that is handed an address and that nobody knows may write there.
    assert written_parameters(_in_blocks) == {"block_out", "described", "sums", "table", "size"}


def _run(code: str, tmp_path: Path, *, forked: bool = True, **environment: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(dedent(code))
    environment = {"DS_ACCELERATOR": "cpu", "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}"} | environment
    if not forked:
        return processes.checked([sys.executable, script], env=os.environ | environment)
    environment[forked_worker.SOCKET] = forked_worker.server()
    return processes.checked(
        [sys.executable, "-m", forked_worker.__name__, "-m", "script"], env=os.environ | environment
    )


def test_deepspeed_uses_the_stand_ins_and_starts_no_compiler(tmp_path: Path) -> None:
    printed = _run(
        """
        import torch
        from zerokit.rehearsal.stand_ins import op_builders
        from zerokit.rehearsal.errors import RehearsalGap, met_gaps
        from tests.rehearsal.real_ops import host_memory
        op_builders.install_ops(op_builders.op_modules(host_memory))
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.ops.op_builder.async_io import AsyncIOBuilder
        from deepspeed.ops.op_builder.evoformer_attn import EvoformerAttnBuilder
        from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder
        from deepspeed.ops.op_builder.random_ltd import RandomLTDBuilder
        from deepspeed.ops.op_builder.utils import UtilsBuilder

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
    assert lines["stepped"] == "[1.0, 1.0, 1.0]"  # nothing is computed
    assert (lines["bytes"], lines["handle"], lines["compatible"]) == ("8", "1048576", "True False")
    assert lines["gap"].split(": ")[0].endswith("script.py:23")
    assert "'random_ltd'" in lines["gap"]
    assert lines["met"] == "1"


def test_a_set_of_tensors_is_gone_through_in_the_same_order_wherever_their_memory_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        dedent("""
        import sys
        import torch

        held = [torch.empty(1) for _ in range(int(sys.argv[1]))]
        places = {torch.empty(1): place for place in range(20)}
        weight = torch.nn.Parameter(torch.empty(1))
        other = torch.nn.Parameter(torch.empty(1))
        {weight, other}
        torch.utils.swap_tensors(weight, other)  # it takes none that somebody refers to weakly
        print([places[tensor] for tensor in set(places)], len({hash(tensor) for tensor in places}))
        weight.grad = torch.empty(1)
        torch.optim.SGD([weight], lr=1.0).step()
        """)
    )

    def order(held: int) -> str:
        done = rehearse("--num-gpus", 1, "train.py", held, cwd=tmp_path, forked=True)
        return done.out.splitlines()[0]

    first = order(0)
    assert first == order(33)
    assert first.endswith("] 20")


def test_muon_imports_inductor_where_its_update_is_computed(tmp_path: Path) -> None:
    """Engines import Muon whatever their optimizer is."""
    (tmp_path / "doubled.py").write_text(
        dedent(
            """
            from deepspeed.runtime.compiler import compile

            @compile()
            def double(x):
                return 2 * x
            """
        )
    )
    printed = _run(
        """
        import functools, pathlib, sys
        from types import SimpleNamespace
        from zerokit.rehearsal.stand_ins import torch_compile
        calls = SimpleNamespace(call_sites=SimpleNamespace(pass_over=lambda folder: None))
        torch_compile.install(SimpleNamespace(rank=calls, generated=pathlib.Path("generated")))
        import deepspeed, torch
        from deepspeed.runtime.compiler import compile
        from deepspeed.runtime.zero.muon import original_muon

        print("imported", "torch._inductor.compile_fx" in sys.modules)
        whole = compile()(torch.nn.Linear(2, 2))
        print("module", type(whole).__name__)
        graphs = []

        def keep(graph, inputs):
            graphs.append(graph)
            return graph

        # It compiles by torch.compile as it is when DeepSpeed requests the decorator.
        torch.compile = functools.partial(torch.compile, backend=keep)
        from doubled import double as later
        torch.compile = None
        before = len(graphs)
        print("compiled", later(torch.ones(2)).tolist(), later.__name__, before, len(graphs))
        later(torch.ones(2))
        print("again", len(graphs))
        """,
        tmp_path,
        forked=False,  # in which it is imported
    )
    assert "imported False\nmodule OptimizedModule\n" in printed
    assert "compiled [2.0, 2.0] double 0 1\nagain 1\n" in printed


def test_superoffload_runs_its_worker_here(tmp_path: Path) -> None:
    printed = _run(
        """
        import os, torch
        from zerokit.rehearsal.stand_ins import op_builders
        from tests.rehearsal import real_ops
        modules = op_builders.op_modules(real_ops.host_memory)
        real_ops.give_values(modules)
        op_builders.install_ops(modules)
        from deepspeed.runtime.superoffload.superoffload_utils import SuperOffloadCPUOptimizer

        cores = os.sched_getaffinity(0)
        config = {"lr": 0.25, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
        optimizer = SuperOffloadCPUOptimizer(config, max_grad_numel=4, pin_memory=False)
        parameter = torch.ones(4)
        for _ in range(2):
            optimizer.async_step(0, 0, parameter, torch.ones(4))
            result = optimizer.get_result("adam_step")
        in_place = result["updated_param"].data_ptr() == parameter.data_ptr()
        print("updated", [round(value, 4) for value in parameter.tolist()], in_place)
        optimizer.async_step(0, 0, parameter, torch.ones(4), rollback=True)
        optimizer.get_result("rollback")
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
    assert "cores True" in lines
    assert any("exceeds pre-allocated buffer size 4" in line for line in lines)


def test_zero3_on_nvme_books_what_deepspeed_writes(tmp_path: Path) -> None:
    """Each element of this rank: three float32 (parameter, moments) and, in large parameters, a bf16 copy."""
    printed = _run(
        """
        from zerokit.rehearsal import virtual_cluster
        with virtual_cluster(4) as cluster:
            import deepspeed, torch
            from zerokit.rehearsal.stand_ins.nvme_ledger import nvme_ledger
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
            print("ledger", *sorted(nvme_ledger().file_bytes.values()))
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


@pytest.mark.rehearsal
def test_a_profiler_of_the_gpu_sees_the_host_and_prints_nothing_of_its_own(tmp_path: Path) -> None:
    options = ("--num-gpus", 1, "--scan", 0, "--steps", 0)
    done = rehearse(*options, SCRIPTS / "profiles.py", cwd=tmp_path, forked=True)
    assert done.code == 0
    assert "profiled [True, True]" in done.err
    assert "Failed to record CUDA event" not in done.err
    assert len(done.err.splitlines()) < 20

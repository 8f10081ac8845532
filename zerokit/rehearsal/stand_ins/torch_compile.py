"""torch.compile: Dynamo, AOTAutograd and Inductor run; the kernels that they write do nothing.

Inductor's generated code allocates as on a GPU. Its Triton kernels allocate nothing and are neither compiled
nor run; with the clock they take the time of the bytes that they move. If Inductor cannot compile a graph
here, or Triton is not installed, the code runs as it is written, and the report says so.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from zerokit.patches import Patch, put, wrap
from zerokit.rehearsal.context import note, rank_context
from zerokit.rehearsal.errors import RehearsalGap, script_line
from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.stand_ins.triton_pointers import written_parameters
from zerokit.rehearsal.timing.rank_time import RankTime, rank_time, untimed

_COMPILE = Patch("torch", "compile", "run code as it is written without Triton, and import Inductor only to compile")
_INDUCTOR = Patch("torch:_TorchCompileInductorWrapper", "__call__", "run as written what Inductor cannot compile here")
_INNER = Patch(
    "torch._inductor.compile_fx",
    "_compile_fx_inner",
    "measure no kernels, and run a backward pass as written that Inductor cannot compile here",
    since="2.8",
)
_AUTOTUNER = "torch._inductor.runtime.triton_heuristics:CachingAutotuner"
_PRECOMPILE = Patch(_AUTOTUNER, "precompile", "leave kernels uncompiled")
_RUN = Patch(_AUTOTUNER, "run", "launch kernels that do nothing")
_SET_DRIVER = Patch(
    "torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", "keep the stand-in of Triton's driver"
)
_EMPTY = Patch(
    "torch._C._dynamo.guards",
    "_empty_strided_cuda",
    "allocate on the virtual device",
    read_by="torch._inductor.codegen.wrapper",
)
_OF_GRAPHS = {
    Patch("torch._C", name, "import torch's module of CUDA graphs", read_by="torch"): dummy
    for name, dummy in (("_cuda_CUDAAllocator_AllocatorState", object), ("_set_cached_tensors_enabled", bool))
}
_NEEDS_INDUCTOR = "flex_attention"
"""An operator that makes the whole matrix of scores unless it is compiled."""
_MEASURED = ("max_autotune", "max_autotune_pointwise", "max_autotune_gemm", "coordinate_descent_tuning")
"""Settings by which Inductor chooses kernels by their speed."""
_TEMPLATE = "triton_tem_"
"""In names of kernels that Inductor does not write itself."""
_GRAPHS = "triton.cudagraphs"
_INSTALL = "Install triton with torch: it needs no GPU here"


class _Lines(dict[int, str]):
    """The line of each graph by Inductor's number, for a backward that another thread compiles."""


def _note(what: str, line: str) -> None:
    note("torch.compile ({why}): {what}", what, line)


@stand_in("torch.compile")
def install(setup: RankSetup) -> None:
    """Have `torch.compile` with Inductor work for the virtual device."""
    setup.rank.call_sites.pass_over(setup.generated)
    if importlib.util.find_spec("triton") is None:
        wrap(_COMPILE, _run_uncompiled)
        return
    # Not in the caches that real runs read.
    folder = setup.generated
    os.environ.update(
        TORCHINDUCTOR_CACHE_DIR=str(folder),
        TRITON_CACHE_DIR=str(folder),
        TORCHINDUCTOR_COMPILE_THREADS="1",  # no processes that compile kernels
    )
    wrap(_COMPILE, _compile_when_called)
    wrap(_INDUCTOR, _compile_graph)
    wrap(_INNER, _compile_pass)
    put(_PRECOMPILE, lambda *_, **__: None)
    put(_RUN, _launch)
    put(_SET_DRIVER, lambda: None)
    put(_EMPTY, _empty)
    for patch, dummy in _OF_GRAPHS.items():
        put(patch, dummy)


def _compile_when_called(compile_with: Any, model: Any = None, **given: Any) -> Any:
    """Compile a function later if its module is being imported: few runs call those of bitsandbytes and Muon.

    Inductor is then imported in no time of the run's.
    """
    module = sys.modules.get(getattr(model, "__module__", None) or "")
    if not getattr(getattr(module, "__spec__", None), "_initializing", False) or not inspect.isfunction(model):
        return compile_with(model, **given)
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(model)
    def call(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # as a part of what calls it
            return model(*arguments, **options)
        if not compiled:
            with untimed():
                compiled.append(compile_with(model, **given))
        return compiled[0](*arguments, **options)

    return call


def _run_uncompiled(compile_with: Any, model: Any = None, **given: Any) -> Any:
    if given.get("backend", "inductor") != "inductor":
        return compile_with(model, **given)
    if model is None:
        return lambda function: _run_uncompiled(compile_with, function, **given)
    if isinstance(model, torch.nn.Module):
        _note_that_triton_is_missing()
        return model

    @functools.wraps(model)
    def runs(*arguments: Any, **options: Any) -> Any:
        if _NEEDS_INDUCTOR in getattr(model, "__module__", ""):
            raise RehearsalGap(f"torch.compile of {_NEEDS_INDUCTOR}", hint=_INSTALL, where=script_line())
        _note_that_triton_is_missing()
        return model(*arguments, **options)

    return runs


def _note_that_triton_is_missing() -> None:
    what = "Triton is not installed, so that code ran as it is written, which mostly takes more memory"
    _note(f"{what}. {_INSTALL}", script_line())


def _empty(size: Any, stride: Any, dtype: Any) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _compile_graph(compile_graph: Any, inductor: Any, graph: Any, inputs: Any, **given: Any) -> Any:
    if inductor.config.pop(_GRAPHS, False):
        _note("CUDA graphs were left out, with the memory that they keep", script_line())
    for setting in _MEASURED:
        inductor.config.pop(setting, None)
    try:
        return compile_graph(inductor, graph, inputs, **given)
    except Exception as error:  # of all that takes part: Inductor, Triton, the compiler of host code
        _note_that_it_runs_as_written(graph, error, script_line())
        return graph


def _compile_pass(compile_pass: Any, graph: Any, inputs: Any, **given: Any) -> Any:
    """One pass of a graph, without measurements that Inductor's own settings request.

    Its backward may be compiled when it is run, outside of any handler.
    """
    config, line, number = sys.modules["torch._inductor.config"], script_line(), given.get("graph_id")
    if number is not None:
        line = rank_context().state(_Lines).setdefault(number, line)
    with config.patch({setting: False for setting in _MEASURED if hasattr(config, setting)}):
        try:
            return compile_pass(graph, inputs, **given)
        except Exception as error:
            if not given.get("is_backward"):
                raise
            _note_that_it_runs_as_written(graph, error, line)
            return sys.modules["torch._functorch.aot_autograd"].make_boxed_func(graph)


def _note_that_it_runs_as_written(graph: Any, error: Exception, line: str) -> None:
    """Report why a graph is not compiled; raise if it is another algorithm then."""
    reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    if any(_NEEDS_INDUCTOR in str(node.target) for node in graph.graph.nodes):
        what = f"torch.compile of {_NEEDS_INDUCTOR} ({reason})"
        raise RehearsalGap(what, where=line) from error
    _note(
        f"Inductor does not compile a graph here ({reason}), whose memory is that of the code as it is written", line
    )


def _launch(kernel: Any, *arguments: Any, **given: Any) -> None:
    """Make up what one of Inductor's kernels writes."""
    signature = kernel.triton_meta["signature"]
    names = [name for name in kernel.fn.arg_names if signature.get(name) != "constexpr"]
    bound = dict(zip(names, arguments, strict=False)) | given
    for name in written_parameters(kernel.fn.fn):
        if isinstance(bound.get(name), torch.Tensor):
            backend().make_up(bound[name])
    if time := rank_time():
        _take_time(time, kernel, bound)


def _take_time(time: RankTime, kernel: Any, arguments: Mapping[str, Any]) -> None:
    """The time of reading and writing the kernel's tensors once.

    Of a larger one, such as the table of an embedding, it reads a part: `estimate_kernel_num_bytes` in
    torch/_inductor/codegen/simd.py.
    """
    name = kernel.fn.__name__
    if name.startswith(_TEMPLATE):  # such as flex_attention, which is no matter of bytes alone
        time.without_cost.setdefault(name, "no times of Inductor's templates were found")
        return
    axes: Mapping[str, int] = kernel.size_hints or {}
    computed = math.prod(int(arguments.get(f"{axis}numel", hint)) for axis, hint in axes.items())
    moved = sum(
        (min(tensor.numel(), computed) if axes else tensor.numel())
        * tensor.itemsize
        * (2 if argument.startswith("in_out") else 1)
        for argument, tensor in arguments.items()
        if isinstance(tensor, torch.Tensor)
    )
    time.kernel(name, moved)

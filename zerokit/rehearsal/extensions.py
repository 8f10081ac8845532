"""What a script compiles for the GPU while it runs: refused before a compiler is started."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.imports import when_imported

_CUDA_SOURCES = (".cu", ".cuh")


def install() -> None:
    """Refuse CUDA sources and DeepCompile. Extensions of C++ alone are compiled, and run on the host."""
    import torch

    torch.cuda._compile_kernel = _refuse_kernel  # type: ignore[assignment]
    when_imported("torch.utils.cpp_extension", _refuse_cuda_sources)
    when_imported("deepspeed.runtime.engine", _refuse_deepcompile)


def _refuse_kernel(_source: str, name: str, *_: Any, **__: Any) -> Any:
    raise RehearsalGap(f"the CUDA kernel '{name}', which torch.cuda._compile_kernel compiles")


def _refuse_cuda_sources(module: ModuleType) -> None:
    load, load_inline = module.load, module.load_inline

    @functools.wraps(load)
    def load_for_host(name: str, sources: Any, *arguments: Any, **given: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        if given.get("with_cuda") or any(Path(file).suffix in _CUDA_SOURCES for file in files):
            raise _extension_gap(name)
        return load(name, sources, *arguments, **given)

    @functools.wraps(load_inline)
    def load_inline_for_host(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **given: Any
    ) -> Any:
        if cuda_sources or given.get("with_cuda"):
            raise _extension_gap(name)
        return load_inline(name, cpp_sources, cuda_sources, *arguments, **given)

    module.load, module.load_inline = load_for_host, load_inline_for_host  # type: ignore[attr-defined]


def _extension_gap(name: str) -> RehearsalGap:
    return RehearsalGap(
        f"the CUDA extension '{name}', which torch.utils.cpp_extension compiles",
        hint="Let the script use PyTorch's own operators where ZEROKIT_REHEARSAL is set, or measure this run "
        "on a GPU",
    )


def _refuse_deepcompile(module: ModuleType) -> None:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, of which nothing shows."""
    engine_class = module.DeepSpeedEngine
    compile_engine = engine_class.compile

    @functools.wraps(compile_engine)
    def checked(engine: Any, *arguments: Any, **given: Any) -> Any:
        if engine.is_deepcompile_enabled():
            raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
        return compile_engine(engine, *arguments, **given)

    engine_class.compile = checked

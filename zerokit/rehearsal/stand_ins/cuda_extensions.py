"""What a script compiles for the GPU while it runs: refused before a compiler is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.errors import RehearsalGap

_CUDA_SOURCES = (".cu", ".cuh")
_LOAD = Patch("torch.utils.cpp_extension", "load", "refuse CUDA extensions")
_LOAD_INLINE = Patch("torch.utils.cpp_extension", "load_inline", "refuse CUDA extensions")
_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_COMPILE_ENGINE = Patch(_ENGINE, "compile", "refuse DeepCompile", since="0.16.6")


def install() -> None:
    """Refuse CUDA sources and DeepCompile. Extensions of C++ alone are compiled, and run on the host."""
    wrap(_LOAD, _load)
    wrap(_LOAD_INLINE, _load_inline)
    wrap(_COMPILE_ENGINE, _refuse_deepcompile)


def _load(load: Any, name: str, sources: Any, *arguments: Any, **given: Any) -> Any:
    files = [sources] if isinstance(sources, str) else list(sources)
    if given.get("with_cuda") or any(Path(file).suffix in _CUDA_SOURCES for file in files):
        raise _extension_gap(name)
    return load(name, sources, *arguments, **given)


def _load_inline(
    load: Any, name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **given: Any
) -> Any:
    if cuda_sources or given.get("with_cuda"):
        raise _extension_gap(name)
    return load(name, cpp_sources, cuda_sources, *arguments, **given)


def _extension_gap(name: str) -> RehearsalGap:
    return RehearsalGap(
        f"the CUDA extension '{name}', which torch.utils.cpp_extension compiles",
        hint="Let the script use PyTorch's own operators where ZEROKIT_REHEARSAL is set, or measure this run "
        "on a GPU",
    )


def _refuse_deepcompile(compile_engine: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, of which nothing shows."""
    if engine.is_deepcompile_enabled():
        raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
    return compile_engine(engine, *arguments, **given)

"""What a script compiles for the GPU while it runs: a few are known, others refused by their names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from zerokit.files import write_file
from zerokit.patches import Patch, apply, wrap
from zerokit.rehearsal.errors import RehearsalGap

_CUDA_SOURCES = (".cu", ".cuh")
_LOAD = Patch("torch.utils.cpp_extension", "load", "refuse CUDA extensions")
_LOAD_INLINE = Patch("torch.utils.cpp_extension", "load_inline", "refuse CUDA extensions")
_CUDA_HOME = Patch(
    "torch.utils.cpp_extension", "CUDA_HOME", "tell the release of a compiler that is not here"
)
_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_COMPILE_ENGINE = Patch(_ENGINE, "compile", "refuse DeepCompile", since="0.16.6")


def install(generated: Path) -> None:
    """Refuse CUDA sources and DeepCompile. Extensions of C++ alone are compiled, and run on the host.

    Args:
        generated: a folder for what stands in for the compiler.
    """
    wrap(_LOAD, _load)
    wrap(_LOAD_INLINE, _load_inline)
    apply(_CUDA_HOME, lambda home: home or str(_toolkit(generated / "cuda", str(torch.version.cuda))))
    wrap(_COMPILE_ENGINE, _refuse_deepcompile)


def _toolkit(folder: Path, release: str) -> Path:
    """A folder with an nvcc that tells its release, which scripts ask before they have it compile."""
    command = folder / "bin" / "nvcc"
    command.parent.mkdir(parents=True, exist_ok=True)
    write_file(
        command,
        '#!/bin/sh\ncase "$1" in -V|--version) ;;\n'
        "*) echo 'a rehearsal compiles nothing for the GPU' >&2; exit 1;; esac\n"
        f"echo 'nvcc: NVIDIA (R) Cuda compiler driver'\n"
        f"echo 'Cuda compilation tools, release {release}, V{release}.0'\n",
    )
    command.chmod(0o755)
    return folder


def _load(load: Any, name: str, sources: Any, *arguments: Any, **given: Any) -> Any:
    files = [sources] if isinstance(sources, str) else list(sources)
    if given.get("with_cuda") or any(Path(file).suffix in _CUDA_SOURCES for file in files):
        return _known(name)
    return load(name, sources, *arguments, **given)


def _load_inline(
    load: Any, name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **given: Any
) -> Any:
    if cuda_sources or given.get("with_cuda"):
        return _known(name)
    return load(name, cpp_sources, cuda_sources, *arguments, **given)


def _known(name: str) -> Any:
    """A stand-in for an extension of that name, which is imported by it from then on.

    Raises:
        RehearsalGap: there is none.
    """
    from zerokit.rehearsal.stand_ins.compiled.megatron_softmax import EXTENSIONS

    if name in EXTENSIONS:
        return sys.modules.setdefault(name, EXTENSIONS[name])
    raise RehearsalGap(
        f"the CUDA extension '{name}', which torch.utils.cpp_extension compiles",
        hint="Let the script use PyTorch's own operators where ZEROKIT_REHEARSAL is set, or measure this run "
        "on a GPU",
    )


def _refuse_deepcompile(compile_engine: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, of which nothing shows."""
    if engine.is_deepcompile_enabled():
        raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
    return compile_engine(engine, *arguments, **given)

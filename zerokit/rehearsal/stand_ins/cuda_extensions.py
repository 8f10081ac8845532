"""What a script compiles for the GPU while it runs: a few are known, of others the sources are read.

See `cuda_sources`. What cannot be read is refused by the extension's name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from zerokit.files import write_file
from zerokit.patches import Patch, apply, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.cuda_sources.bindings import bind
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Sources
from zerokit.rehearsal.stand_ins.cuda_sources.running import HINT
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Preprocessor, Token, UnreadError

_CUDA_SOURCES = (".cu", ".cuh")
_LOAD = Patch("torch.utils.cpp_extension", "load", "read CUDA extensions")
_LOAD_INLINE = Patch("torch.utils.cpp_extension", "load_inline", "read CUDA extensions")
_CUDA_HOME = Patch(
    "torch.utils.cpp_extension", "CUDA_HOME", "tell the release of a compiler that is not here"
)
_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_COMPILE_ENGINE = Patch(_ENGINE, "compile", "refuse DeepCompile", since="0.16.6")


def install(generated: Path) -> None:
    """Read CUDA sources, and refuse DeepCompile. Extensions of C++ alone are compiled, and run on the host.

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
    if not given.get("with_cuda") and not any(Path(file).suffix in _CUDA_SOURCES for file in files):
        return load(name, sources, *arguments, **given)
    asked = inspect.signature(load).bind(name, sources, *arguments, **given)
    asked.apply_defaults()
    module = _known(name) or _read(
        name, lambda read: [read.file(Path(file)) for file in files], asked.arguments, []
    )
    return module if asked.arguments.get("is_python_module", True) else None


def _load_inline(
    load: Any, name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **given: Any
) -> Any:
    if not cuda_sources and not given.get("with_cuda"):
        return load(name, cpp_sources, cuda_sources, *arguments, **given)
    asked = inspect.signature(load).bind(name, cpp_sources, cuda_sources, *arguments, **given)
    asked.apply_defaults()
    texts = [
        text
        for part in (cpp_sources, cuda_sources)
        for text in ([part] if isinstance(part, str) else part or [])
    ]
    functions = asked.arguments.get("functions") or []
    return _known(name) or _read(
        name,
        lambda read: [read.text(text, name, Path.cwd()) for text in texts],
        asked.arguments,
        [functions] if isinstance(functions, str) else list(functions),
    )


def _known(name: str) -> Any:
    """A stand-in that is made for an extension of that name, which is imported by it from then on."""
    from zerokit.rehearsal.stand_ins.compiled.megatron_softmax import EXTENSIONS

    return sys.modules.setdefault(name, EXTENSIONS[name]) if name in EXTENSIONS else None


def _read(
    name: str,
    words: Callable[[Preprocessor], list[Iterator[Token]]],
    asked: Mapping[str, Any],
    functions: list[str],
) -> ModuleType:
    """The module of an extension whose sources are read.

    Args:
        name: of the extension.
        words: gives those of each source.
        asked: the arguments of the call that would compile it.
        functions: what it shows to Python besides.

    Raises:
        RehearsalGap: there is something in them that is not understood.
    """
    flags = [
        word
        for option in ("extra_cflags", "extra_cuda_cflags")
        for flag in asked.get(option) or []
        for word in flag.split()
    ]
    defined = {"TORCH_EXTENSION_NAME": name, "__CUDACC__": "1", **_versions()}
    for flag in flags:
        if flag.startswith("-D"):
            macro, _, value = flag[2:].partition("=")
            defined[macro] = value or "1"
    read = Preprocessor(defined, [Path(folder) for folder in asked.get("extra_include_paths") or []])
    sources = Sources()
    try:
        for source in words(read):
            sources.add(list(source))
        module = bind(name, sources, functions)
    except (UnreadError, OSError) as unknown:
        raise RehearsalGap(
            f"the CUDA extension '{name}', which torch.utils.cpp_extension compiles: its sources are read, "
            f"and have {unknown}",
            hint=HINT,
        ) from None
    if asked.get("is_python_module", True):
        sys.modules[name] = module  # where Python puts what pybind11 has made, and scripts look for it
    return module


def _versions() -> dict[str, str]:
    """What headers say of CUDA and torch, by macros that sources ask."""
    major, minor = (torch.version.cuda or "12.0").split(".")[:2]
    cuda = str(1000 * int(major) + 10 * int(minor))
    release = torch.__version__.split(".")
    torch_version = {"TORCH_VERSION_MAJOR": release[0], "TORCH_VERSION_MINOR": release[1]}
    return {"CUDA_VERSION": cuda, "CUDART_VERSION": cuda, **torch_version}


def _refuse_deepcompile(compile_engine: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, of which nothing shows."""
    if engine.is_deepcompile_enabled():
        raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
    return compile_engine(engine, *arguments, **given)

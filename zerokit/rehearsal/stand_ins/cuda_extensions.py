"""What a script compiles for the GPU while it runs: a few are known, of others the sources are read.

See `cuda_sources`. What cannot be read is refused by the extension's name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from zerokit.files import write_file
from zerokit.patches import Patch, apply, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.cuda_sources.bindings import bind
from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Sources
from zerokit.rehearsal.stand_ins.cuda_sources.preprocessor import Preprocessor
from zerokit.rehearsal.stand_ins.cuda_sources.running import HINT
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import CompileError, Token, UnreadError

_CUDA_SOURCES = (".cu", ".cuh")
_NO_OPERATORS = ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
_UNKNOWN = "'a compiler that is not here'"
"""The value of a macro on which no condition may rest."""
_Unit = tuple[bool, Sequence[str | Path]]
"""What the compiler takes as one: whether it is nvcc, and texts or a file."""
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
    units: list[_Unit] = [(Path(file).suffix in _CUDA_SOURCES, [Path(file)]) for file in files]
    module = _known(name) or _read(name, units, asked.arguments, [])
    return module if asked.arguments.get("is_python_module", True) else None


def _load_inline(
    load: Any, name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **given: Any
) -> Any:
    if not cuda_sources and not given.get("with_cuda"):
        return load(name, cpp_sources, cuda_sources, *arguments, **given)
    asked = inspect.signature(load).bind(name, cpp_sources, cuda_sources, *arguments, **given)
    asked.apply_defaults()
    # torch writes those of each kind into one file.
    units: list[_Unit] = [
        (is_cuda, [part] if isinstance(part, str) else list(part))
        for is_cuda, part in ((False, cpp_sources), (True, cuda_sources))
        if part
    ]
    functions = asked.arguments.get("functions") or []
    shown = [functions] if isinstance(functions, str) else list(functions)
    return _known(name) or _read(name, units, asked.arguments, shown)


def _known(name: str) -> Any:
    """A stand-in that is made for an extension of that name, which is imported by it from then on."""
    from zerokit.rehearsal.stand_ins.compiled.megatron_softmax import EXTENSIONS

    return sys.modules.setdefault(name, EXTENSIONS[name]) if name in EXTENSIONS else None


def _read(name: str, units: list[_Unit], asked: Mapping[str, Any], functions: list[str]) -> ModuleType:
    """The module of an extension whose sources are read.

    Args:
        name: of the extension.
        units: its sources.
        asked: the arguments of the call that would compile it.
        functions: what it shows to Python besides.

    Raises:
        OSError: there is no such source.
        RehearsalGap: there is something in them that is not understood.
        RuntimeError: the compiler refuses them, too.
    """
    sources = Sources()
    folders = [Path(folder) for folder in asked.get("extra_include_paths") or []]
    try:
        for is_cuda, parts in units:
            read = Preprocessor(_defined(name, is_cuda, asked), folders)
            words: list[Token] = []
            for part in parts:
                words += read.text(part, name, Path.cwd()) if isinstance(part, str) else read.file(part)
            sources.add(words)
        module = bind(name, sources, functions)
    except CompileError as refused:
        raise RuntimeError(f"Error building extension '{name}': {refused}") from None
    except UnreadError as unknown:
        raise RehearsalGap(
            f"the CUDA extension '{name}', which torch.utils.cpp_extension compiles: its sources are read, "
            f"and have {unknown}",
            hint=HINT,
        ) from None
    if asked.get("is_python_module", True):
        sys.modules[name] = module  # where Python puts what pybind11 has made, and scripts look for it
    return module


def _defined(name: str, is_cuda: bool, asked: Mapping[str, Any]) -> dict[str, str]:
    """The macros that the compiler of a source defines, and that torch and its caller have it define.

    Raises:
        UnreadError: a macro with arguments is among them.
    """
    defined = {"TORCH_EXTENSION_NAME": name, "TORCH_API_INCLUDE_EXTENSION_H": "1", **_versions()}
    defined |= {"__linux__": "1", "__x86_64__": "1", **dict.fromkeys(("__cplusplus", "__GNUC__"), _UNKNOWN)}
    if is_cuda:
        major, minor = _cuda_release()
        defined |= {"__CUDACC__": "1", "__NVCC__": "1"}
        defined |= {"__CUDACC_VER_MAJOR__": major, "__CUDACC_VER_MINOR__": minor}
        # torch/utils/cpp_extension.py, COMMON_NVCC_FLAGS
        defined |= dict.fromkeys((f"__CUDA_NO_{kind}__" for kind in _NO_OPERATORS), "1")
    flags = asked.get("extra_cuda_cflags" if is_cuda else "extra_cflags") or []
    words = iter([word for flag in flags for word in flag.split()])
    for word in words:
        if word[:2] not in ("-D", "-U"):
            continue
        macro, is_given, value = (word[2:] or next(words, "")).partition("=")
        if not macro.isidentifier():
            raise UnreadError(f"the option {word}")
        defined.pop(macro, None)
        if word[:2] == "-D":
            defined[macro] = value if is_given else "1"
    return defined


def _cuda_release() -> list[str]:
    """Major and minor."""
    return (torch.version.cuda or "12.0").split(".")[:2]


def _versions() -> dict[str, str]:
    """What headers say of CUDA and torch, by macros that sources ask."""
    major, minor = _cuda_release()
    cuda = str(1000 * int(major) + 10 * int(minor))
    release = torch.__version__.split(".")
    torch_version = {"TORCH_VERSION_MAJOR": release[0], "TORCH_VERSION_MINOR": release[1]}
    return {"CUDA_VERSION": cuda, "CUDART_VERSION": cuda, **torch_version}


def _refuse_deepcompile(compile_engine: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, of which nothing shows."""
    if engine.is_deepcompile_enabled():
        raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
    return compile_engine(engine, *arguments, **given)

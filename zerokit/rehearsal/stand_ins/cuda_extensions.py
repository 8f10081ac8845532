"""Compiles the host code of CUDA extensions (torch.utils.cpp_extension) with a C++ compiler.

`cuda_host_code` rewrites the sources. The host code checks and allocates as on a GPU; the kernels that it
launches do nothing and are reported. An extension that needs more of CUDA's toolkit than cuda_host.h has is
refused by its name.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zerokit.files import write_file
from zerokit.patches import Patch, apply, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.native.backend import SMALL_BYTES, backend
from zerokit.rehearsal.native.build import cache_folder
from zerokit.rehearsal.stand_ins import custom_operators
from zerokit.rehearsal.stand_ins.cuda_host_code import Rewriter
from zerokit.rehearsal.stand_ins.kernel_launches import note_launch
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_CUDA_SOURCES = (".cu", ".cuh")
_HEADER = Path(__file__).with_name("cuda_host.h")
_HINT = (
    "Where ZEROKIT_REHEARSAL is set, define its operators in Python instead (torch.library.define), each "
    "with torch.library.register_fake for the shapes of its results; or measure this run on a GPU"
)
_COMPILE = Patch("torch.utils.cpp_extension", "_jit_compile", "compile the host code of CUDA extensions")
_CUDA_HOME = Patch("torch.utils.cpp_extension", "CUDA_HOME", "report the release of a CUDA toolkit")
_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_COMPILE_ENGINE = Patch(_ENGINE, "compile", "refuse DeepCompile", since="0.16.6")
_ON_LAUNCH = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_int
)
_DTYPES = {"d": torch.float64, "f": torch.float32, "e": torch.float16, "b": torch.bfloat16, "i": torch.uint8}
"""By the kinds of values of cuda_host.h."""


@stand_in("torch.utils.cpp_extension.load", "load_inline", "CUDA_HOME", "DeepCompile")
def install(setup: RankSetup) -> None:
    """Compile CUDA extensions without CUDA's toolkit, and refuse DeepCompile."""
    toolkit = setup.generated / "cuda"
    wrap(_COMPILE, _compile)
    apply(_CUDA_HOME, lambda home: home or str(_toolkit(toolkit, str(torch.version.cuda))))
    wrap(_COMPILE_ENGINE, _refuse_deepcompile)


def _toolkit(folder: Path, release: str) -> Path:
    """A folder with an nvcc that prints its release, which scripts ask for before they compile."""
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


def _compile(compile_extension: Any, *arguments: Any, **given: Any) -> Any:
    """In place of `_jit_compile`, which `load` and `load_inline` call.

    Raises:
        RehearsalGap: the host code needs more of CUDA than cuda_host.h has, or is wrong.
        OSError: a source cannot be read.
    """
    asked = inspect.signature(compile_extension).bind(*arguments, **given)
    asked.apply_defaults()
    options = asked.arguments
    if not options["with_cuda"] and not any(Path(one).suffix in _CUDA_SOURCES for one in options["sources"]):
        return compile_extension(*arguments, **given)
    name: str = options["name"]
    with _locked(_folder(options)) as folder:
        rewriter = Rewriter(folder, [Path(one) for one in options["extra_include_paths"] or []])
        kept = [flag for flag in options["extra_cflags"] or [] if flag.startswith(("-std=", "-I", "-f"))]
        options |= {
            "sources": [str(rewriter.copy(one, _macros(one, options))) for one in _sources(options)],
            "extra_cflags": ["-O0", "-w", "-include", str(_HEADER), *_card(), *kept],
            "extra_ldflags": [flag for flag in options["extra_ldflags"] or [] if not _is_of_cuda(flag)],
            "build_directory": str(folder),
            "with_cuda": False,
        }
        before = custom_operators.names()
        try:
            module = compile_extension(**options)
        except RuntimeError as error:
            if not str(error).startswith("Error building extension"):
                raise  # such as ninja that is not installed
            raise RehearsalGap(_failure(name, str(error)), hint=_HINT) from None
    custom_operators.run_as_they_are(custom_operators.names() - before)
    library = ctypes.CDLL(module if isinstance(module, str) else module.__file__)
    ctypes.c_void_p.in_dll(library, "zerokit_on_launch").value = ctypes.cast(
        _on_launch, ctypes.c_void_p
    ).value
    return module


def _is_of_cuda(flag: str) -> bool:
    """Whether a flag names a library of CUDA's toolkit, which a machine without it lacks."""
    return flag.startswith(("-lcu", "-lnv"))


def _failure(name: str, printed: str) -> str:
    error = re.search(r"^(.*?:\d+):\d+: (?:fatal )?error: (.*)$", printed, re.MULTILINE)
    found = f"{error[1]}: {error[2]}" if error else printed.strip().partition("\n")[0]
    return f"the CUDA extension '{name}', whose host code does not compile without CUDA's toolkit: {found}"


def _folder(options: Mapping[str, Any]) -> Path:
    """The build folder of an extension; ninja recompiles only changed sources."""
    key = hashlib.sha256(_HEADER.read_bytes())
    for source in _sources(options):
        key.update(source.read_bytes())
    names = ("extra_cflags", "extra_cuda_cflags", "extra_include_paths", "extra_ldflags")
    key.update(repr([torch.__version__, _card(), *(options[name] for name in names)]).encode())
    return cache_folder() / "extensions" / f"{options['name']}-{key.hexdigest()[:12]}"


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Keep other ranks out of `folder`; the lock ends with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rank.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)  # torch's own, which a killed process leaves
        yield folder


def _sources(options: Mapping[str, Any]) -> list[Path]:
    return [Path(source) for source in options["sources"]]


def _macros(source: Path, options: Mapping[str, Any]) -> str:
    """Preprocessor lines for the -D and -U flags of `source`."""
    is_cuda = source.suffix in _CUDA_SOURCES
    flags: Sequence[str] = options["extra_cuda_cflags" if is_cuda else "extra_cflags"] or []
    words = iter([word for flag in flags for word in flag.split()])
    lines = ["#define ZEROKIT_CUDACC 1\n"] if is_cuda else []
    for word in words:
        if word[:2] in ("-D", "-U"):
            macro, is_given, value = (word[2:] or next(words, "")).partition("=")
            lines.append(f"#undef {macro}\n")
            if word[:2] == "-D":
                lines.append(f"#define {macro} {value if is_given else 1}\n")
    return "".join(lines)


def _card() -> list[str]:
    """The device's properties, as macros of cuda_host.h."""
    device = torch.cuda.current_device()
    card: Any = torch.cuda.get_device_properties(device)
    facts = {
        "DEVICE": device,
        "MAJOR": card.major,
        "MINOR": card.minor,
        "MULTIPROCESSORS": card.multi_processor_count,
        "THREADS": card.max_threads_per_multi_processor,
        "MEMORY": f"{card.total_memory}L",
        "SHARED": card.shared_memory_per_multiprocessor,
        "SHARED_BLOCK": card.shared_memory_per_block_optin,
    }
    return [f"-DZEROKIT_{name}={value}" for name, value in facts.items()]


@_ON_LAUNCH  # type: ignore[untyped-decorator]
def _on_launch(name: bytes, addresses: Any, kinds: bytes, count: int) -> None:
    """Make up the values that a kernel may write, and report the launch."""
    moved, writes_integers = 0, False
    for address, kind in zip(addresses[:count], kinds[:count].decode(), strict=True):
        begin, size = backend().block_at(address or 0)
        if not size:
            continue
        moved += size if kind == "r" else 2 * size
        if kind != "r":
            writes_integers |= kind == "i"
            backend().make_up_at(address)
            if size < SMALL_BYTES:
                _fill(begin, size, _DTYPES[kind])
    note_launch("CUDA kernels compiled at run time", name.decode(), moved, writes_integers)


def _fill(begin: int, size: int, dtype: torch.dtype) -> None:
    """Give small results the values of made-up ones: 1, and 0 for integers."""
    whole = size - size % dtype.itemsize
    memory = (ctypes.c_char * whole).from_address(begin)
    with backend().uncounted():
        torch.frombuffer(memory, dtype=dtype).fill_(1 if dtype.is_floating_point else 0)


def _refuse_deepcompile(compile_engine: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, where they cannot be counted."""
    if engine.is_deepcompile_enabled():
        raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
    return compile_engine(engine, *arguments, **given)

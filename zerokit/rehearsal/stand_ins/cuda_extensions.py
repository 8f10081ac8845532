"""Compiles the host code of CUDA extensions (torch.utils.cpp_extension) with a C++ compiler.

The host code checks and allocates as on a GPU; its kernels have no bodies, and launches are reported. An
extension that needs more of CUDA's toolkit than cuda_host.h has is refused by name.
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
from typing import Any, NoReturn

import torch

from zerokit.files import write_file
from zerokit.patches import Patch, apply, put, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.native.backend import SMALL_BYTES, backend
from zerokit.rehearsal.native.build import rehearsal_cache_folder
from zerokit.rehearsal.stand_ins import custom_operators
from zerokit.rehearsal.stand_ins.kernel_launches import note_launch
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.staging import open_private_file

_OPAQUE = re.compile(
    r'R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
"""Comments and literals, in which no code is."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_CUDA_HEADER = re.compile(
    r"(cuda|cub/|cublas|curand|cusparse|cusolver|thrust/|cooperative_groups|nvtx|nvToolsExt|mma\.h|sm_\d|THC/)"
    r"|((ATen|c10)/cuda/)|(vector_types|device_launch_parameters|math_constants|driver_types)"
)
"""Headers of CUDA's toolkit; cuda_host.h has the names that host code uses."""
_QUALIFIER = re.compile(
    r"\b(__global__|__device__|__host__|__shared__|__constant__|__managed__|__forceinline__|__noinline__"
    r"|__grid_constant__|__launch_bounds__|__cluster_dims__|__maxnreg__)\b"
)
_NO_PARAMETERS = re.compile(
    r"\b(__launch_bounds__|C10_LAUNCH_BOUNDS_\d|__cluster_dims__|__maxnreg__|__attribute__|operator)\s*$"
)
"""Words before parentheses that hold no parameters."""
_CLOSING = {"(": ")", "{": "}"}


class Rewriter:
    """Writes rewritten copies to `folder`: of sources, and of their headers there or in `include_paths`."""

    def __init__(self, folder: Path, include_paths: Sequence[Path]) -> None:
        self._folder, self._include_paths = folder, include_paths
        self._copies: dict[Path, Path] = {}

    def copy(self, source: Path, first: str = "") -> Path:
        """The rewritten copy of `source`, which begins with the lines `first`; raises OSError."""
        source = source.resolve()
        if source not in self._copies:
            suffix = ".cpp" if source.suffix in (".cu", ".cpp", ".cc", ".cxx", ".c") else source.suffix
            copy = self._folder / f"{len(self._copies)}_{source.stem}{suffix}"
            self._copies[source] = copy
            text = self._with_copies(host_code(source.read_text(encoding="utf-8", errors="replace")), source)
            text = f'{first}#line 1 "{source}"\n{text}'
            if not copy.is_file() or copy.read_text(encoding="utf-8") != text:  # else it is compiled again
                write_file(copy, text)
        return self._copies[source]

    def _with_copies(self, text: str, source: Path) -> str:
        def included(match: re.Match[str]) -> str:
            folders = [source.parent] if match[1] == '"' else []
            for folder in (*folders, *self._include_paths):
                if (folder / match[2]).is_file():
                    return f'#include "{self.copy(folder / match[2])}"'
            return "" if _CUDA_HEADER.match(match[2]) else match[0]

        return _INCLUDE.sub(included, text)


def host_code(text: str) -> str:
    """`text` for a compiler of C++, with the same lines."""
    code = _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for begin, end, instead in sorted(_changes(code), reverse=True):
        lines = "\n" * (code.count("\n", begin, end) - instead.count("\n"))
        text = text[:begin] + instead + lines + text[end:]
    return text


def _changes(code: str) -> Iterator[tuple[int, int, str]]:
    """Ranges in `code` and their replacements. The ranges do not overlap."""
    bodies = list(_bodies(code))
    yield from bodies
    # Headers of torch would include CUDA's own if nvcc's macro was set.
    changes = [(*found.span(), "ZEROKIT_CUDACC") for found in re.finditer(r"\b__(CUDACC|NVCC)__\b", code)]
    changes += [(found.start(), _end_of_qualifier(code, found), "") for found in _QUALIFIER.finditer(code)]
    changes += [(found.start(), _end_of_launch(code, found.end()), "") for found in re.finditer("<<<", code)]
    for change in changes:
        if not any(begin <= change[0] < end for begin, end, _ in bodies):
            yield change


def _end_of_launch(code: str, begin: int) -> int:
    """The place after the ``>>>`` that ends a launch's configuration."""
    depth = 0
    for place in range(begin, len(code)):
        depth += (code[place] in "([{") - (code[place] in ")]}")
        if depth == 0 and code.startswith(">>>", place):
            return place + 3
    return len(code)


def _end_of_qualifier(code: str, found: re.Match[str]) -> int:
    has_arguments = found[0] in ("__launch_bounds__", "__cluster_dims__", "__maxnreg__")
    return _closing(code, code.index("(", found.end())) if has_arguments else found.end()


def _bodies(code: str) -> Iterator[tuple[int, int, str]]:
    """The bodies of device functions, and their replacements."""
    past = 0
    for found in re.finditer(r"\b__(global|device)__\b", code):
        if found.start() < past:
            continue
        around = code[max(code.rfind(end, 0, found.start()) for end in ";}{") + 1 : found.start()]
        head = _head(code, found.end())
        if head is None or "__host__" in around or "__host__" in code[found.end() : head[0]]:
            continue
        opening, after = head
        body = re.match(r"[^;{}:=]*", code[after:])
        assert body is not None
        begin = after + body.end()
        if code[begin : begin + 1] != "{" or "constexpr" in around + code[found.end() : opening]:
            continue
        past = _closing(code, begin)
        if found[1] == "global":
            names = ", ".join(["__func__", *_parameters(code[opening + 1 : after - 1])])
            yield begin, past, f"{{ ::zerokit::launched({names}); }}"
        else:
            yield begin, past, "{ __builtin_trap(); }"


def _head(code: str, begin: int) -> tuple[int, int] | None:
    """Where the parentheses of a function's parameters open and end; None for a variable."""
    found = re.compile(r"[(;={]").search(code, begin)
    if found is None or found[0] != "(":
        return None
    after = _closing(code, found.start())
    if _NO_PARAMETERS.search(code[begin : found.start()]):
        return _head(code, after)
    return found.start(), after


def _closing(code: str, begin: int) -> int:
    """The place after the bracket that closes the one at `begin`; the end if none does."""
    opens, closes, depth = code[begin], _CLOSING[code[begin]], 0
    for place in range(begin, len(code)):
        depth += (code[place] == opens) - (code[place] == closes)
        if depth == 0:
            return place + 1
    return len(code)


def _parameters(text: str) -> Iterator[str]:
    """The names of a kernel's named parameters."""
    depth, parts = 0, [""]
    for sign in text.replace("->", "  "):
        depth += (sign in "(<[{") - (sign in ")>]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    for part in parts:
        named = re.search(r"[\w>*&]\s*[\s*&]\s*(?<!:)([A-Za-z_]\w*)\s*(\[[^]]*\]\s*)*$", part.partition("=")[0])
        if named and named[1] not in ("int", "long", "char", "float", "double", "short", "unsigned", "const"):
            yield named[1]


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
_COMPILE_KERNEL = Patch("torch.cuda", "_compile_kernel", "refuse kernels compiled by NVRTC", since="2.8")
_ON_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_int)
_DTYPES = {"d": torch.float64, "f": torch.float32, "e": torch.float16, "b": torch.bfloat16, "i": torch.uint8}
"""By the kinds of values of cuda_host.h."""


@stand_in("torch.utils.cpp_extension.load", "load_inline", "CUDA_HOME", "DeepCompile")
def install(setup: RankSetup) -> None:
    """Compile CUDA extensions without CUDA's toolkit; refuse DeepCompile and NVRTC."""
    toolkit = setup.generated / "cuda"
    wrap(_COMPILE, _compile)
    apply(_CUDA_HOME, lambda home: home or str(_toolkit(toolkit, str(torch.version.cuda))))
    wrap(_COMPILE_ENGINE, _refuse_deepcompile)
    put(_COMPILE_KERNEL, _refuse_nvrtc)


def _toolkit(folder: Path, release: str) -> Path:
    """A folder with an nvcc that prints its release, which scripts read before they compile."""
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
    bound = inspect.signature(compile_extension).bind(*arguments, **given)
    bound.apply_defaults()
    options = bound.arguments
    if not options["with_cuda"] and not any(Path(one).suffix in _CUDA_SOURCES for one in options["sources"]):
        return compile_extension(*arguments, **given)
    name: str = options["name"]
    with _locked(_folder(options)) as folder:
        rewriter = Rewriter(folder, [Path(one) for one in options["extra_include_paths"] or []])
        kept = [flag for flag in options["extra_cflags"] or [] if flag.startswith(("-std=", "-I", "-f"))]
        options |= {
            "sources": [str(rewriter.copy(one, _macros(one, options))) for one in _sources(options)],
            "extra_cflags": ["-O0", "-w", "-include", str(_HEADER), *_card(), *kept],
            "extra_ldflags": [
                flag for flag in options["extra_ldflags"] or [] if not flag.startswith(("-lcu", "-lnv"))
            ],
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
    ctypes.c_void_p.in_dll(library, "zerokit_on_launch").value = ctypes.cast(_on_launch, ctypes.c_void_p).value
    return module


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
    return rehearsal_cache_folder() / "extensions" / f"{options['name']}-{key.hexdigest()[:12]}"


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Keep other ranks out of `folder`; the lock ends with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_private_file(folder / "rank.lock") as lock:
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


def _refuse_nvrtc(*_: Any, **__: Any) -> NoReturn:
    raise RehearsalGap("torch.cuda._compile_kernel, which compiles a CUDA kernel by NVRTC", hint=_HINT)


def _refuse_deepcompile(compile_engine: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
    """DeepCompile moves ZeRO's gathers and releases into the compiled graph, where they cannot be counted."""
    if engine.is_deepcompile_enabled():
        raise RehearsalGap("DeepCompile", hint="Set compile.deepcompile to false in the ds_config")
    return compile_engine(engine, *arguments, **given)

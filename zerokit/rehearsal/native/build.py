"""Builds the C++ backend: once for every torch, with any C++ compiler.

The library is compiled against the headers of the torch that is installed, and belongs to it alone; a
change of torch, of the compiler's name or of the sources makes another one beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from zerokit import console
from zerokit.errors import LaunchError
from zerokit.extras import require

SOURCES = Path(__file__).parent
LIBRARY = "libzerokit_rehearsal.so"
NO_DRIVER = "libcuda.so.1"
FILES = "libzerokit_files.so"
OLDEST = (2, 5)
TESTED = "2.5 to 2.15"
"""Versions of torch that the library has been built against."""
COMPILE = ("-O2", "-std=c++20", "-fPIC", "-Wall")


def torch_folder() -> Path:
    """The folder of the installed torch, which is not imported.

    Raises:
        ZerokitError: torch, or what else a rehearsal needs, is not installed.
    """
    require("rehearse", where="zerokit rehearse")
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def built_library() -> Path:
    """The backend for the installed torch; compiled if this is the first call for it.

    Beside it lies :data:`NO_DRIVER`, a CUDA driver without devices.

    Raises:
        LaunchError: torch is too old, there is no C++ compiler, or it fails.
    """
    torch_folder()
    version = importlib.metadata.version("torch")
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise LaunchError(
            f"the virtual device does not fit torch {version}, which is too old",
            where="rehearse",
            hint=f"Install a version that zerokit is tested with: torch {TESTED}",
        )
    return _built(_cache_folder(f"torch-{version}", SOURCES, str(torch_folder())) / LIBRARY, _build)


def built_files_library() -> Path:
    """The library that is preloaded to guard files; compiled if this is the first call.

    Raises:
        LaunchError: there is no C++ compiler, or it fails.
    """
    return _built(_cache_folder("files", SOURCES / "files") / FILES, _build_files)


def _built(library: Path, build: Callable[[Path], None]) -> Path:
    folder = library.parent
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Ranks and runs may come here at the same time; the lock dies with its holder.
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.is_file():
                build(library)
    except OSError as error:
        raise LaunchError(
            f"the virtual device cannot be built there: {error.strerror}",
            where=str(folder),
            hint="Make room, or name a folder you may write to as XDG_CACHE_HOME",
        ) from None
    return library


def _cache_folder(name: str, sources: Path, *more: str) -> Path:
    key = hashlib.sha256()
    for source in sorted([*sources.glob("*.cpp"), *sources.glob("*.h")]):
        key.update(source.read_bytes())
    key.update(" ".join([_compiler_name(), str(COMPILE), *more]).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "zerokit" / "rehearsal" / f"{name}-{key.hexdigest()[:12]}"


def _compiler_name() -> str:
    """As in make: CXX may hold options, or a program in front such as ccache."""
    return os.environ.get("CXX") or next(
        (name for name in ("g++", "c++", "clang++") if shutil.which(name)), "g++"
    )


def _compiler() -> list[str]:
    compiler = shlex.split(_compiler_name())
    if not compiler or shutil.which(compiler[0]) is None:
        raise LaunchError(
            "no C++ compiler, with which zerokit builds the virtual device once",
            where="rehearse",
            hint="Install one: 'apt install g++' on Debian and Ubuntu, 'dnf install gcc-c++' on Fedora",
        )
    return compiler


def _build(library: Path) -> None:
    compiler = _compiler()
    console.note(
        f"Building the virtual device for torch {importlib.metadata.version('torch')} (once, a minute or two)"
    )
    torch = torch_folder()
    includes = ["-isystem", str(torch / "include")]
    includes += ["-isystem", str(torch / "include" / "torch" / "csrc" / "api" / "include")]
    strings = f"-D_GLIBCXX_USE_CXX11_ABI={int(_has_new_strings(torch))}"
    sources = [source for source in sorted(SOURCES.glob("*.cpp")) if source.stem != "no_driver"]
    parts = library.parent / "parts"  # which stay where this is interrupted, and are taken the next time
    parts.mkdir(exist_ok=True)

    def compile_one(source: Path) -> Path:
        target = parts / f"{source.stem}.o"
        if not target.is_file():
            beside = target.with_suffix(".begun")
            _run([*compiler, *COMPILE, strings, *includes, "-c", str(source), "-o", str(beside)])
            beside.replace(target)
        return target

    with console.progress(transient=True) as bar, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiled = [pool.submit(compile_one, source) for source in sources]
        task = bar.add_task("Compiling", total=len(sources), note="")
        for _ in bar.track(as_completed(compiled), task_id=task):
            pass
        objects = [str(one.result()) for one in compiled]
    linked = parts / LIBRARY
    libraries = ["-L", str(torch / "lib"), "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
    _run([*compiler, "-shared", "-o", str(linked), *objects, *libraries])
    driver = parts / NO_DRIVER
    soname = f"-Wl,-soname,{NO_DRIVER}"
    _run([*compiler, "-shared", "-fPIC", "-O1", soname, "-o", str(driver), str(SOURCES / "no_driver.cpp")])
    driver.replace(library.with_name(NO_DRIVER))
    linked.replace(library)  # last: it says that the folder is complete
    shutil.rmtree(parts)


def _has_new_strings(torch: Path) -> bool:
    """Whether torch was compiled with the std::string of C++11; the registry's builds before 2.7 were not."""
    takes_an_old_one = (
        b"_ZN3c105ErrorC1ENS_14SourceLocationESs"  # c10::Error::Error(c10::SourceLocation, std::string)
    )
    return takes_an_old_one not in (torch / "lib" / "libc10.so").read_bytes()


def _build_files(library: Path) -> None:
    # Every program that a script starts loads it too: it needs nothing but the C library.
    alone = ["-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Wl,--as-needed", "-Wl,-z,initfirst"]
    sources = map(str, sorted((SOURCES / "files").glob("*.cpp")))
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        linked = Path(scratch, FILES)
        _run([*_compiler(), *COMPILE, *alone, "-shared", "-o", str(linked), *sources, "-ldl"])
        linked.replace(library)


def _run(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode != 0:
        errors = [line for line in outcome.stderr.splitlines() if "error" in line] or [outcome.stderr[-300:]]
        raise LaunchError(
            f"the virtual device could not be built: {errors[0]}",
            where=Path(command[0]).name,
            hint=f"It is known to build with g++ 11 and later against torch {TESTED}",
        )

"""Builds the C++ backend once for each version of torch, with any C++ compiler.

The library is compiled against the headers of the installed torch. Another version, compiler or source makes
another library. A wheel has libraries for common versions (``python -m tools.prebuilt``), which are used if
they fit the installed torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from zerokit import console, files
from zerokit.errors import LaunchError
from zerokit.extras import require
from zerokit.files import write_file
from zerokit.rehearsal.native.compilers import run_together
from zerokit.staging import make_folder, open_private_file
from zerokit.tables import table_of

SOURCES = Path(__file__).parent
LIBRARY = "libzerokit_rehearsal.so"
NO_DRIVER = "libcuda.so.1"
TOGETHER = "libzerokit_together.so"
"""Plays ranks together, in the command's own process: it needs nothing of torch."""
FILES = "libzerokit_files.so"
OLDEST = (2, 5)
TESTED = "2.5 to 2.15"
"""Versions of torch that the library has been built against."""
TORCH = ("libtorch_global_deps.so", "libtorch.so")
"""What is opened before the library, in this order."""
PREBUILT = SOURCES / "prebuilt"
"""What a wheel brings: a folder for each torch, by the names of `prebuilt_folder`."""
_RELEASE = re.compile(r"[\d.]+(\+.*)?")
"""Versions whose classes are laid out as those of the wheels: no nightly, and no vendor's 2.9.0a0."""
COMPILE = ("-O2", "-std=c++20", "-fPIC", "-Wall")
LINK = ("-shared", "-s", "-Wl,-z,now")  # resolve all names when it is opened
LINK_NO_DRIVER = ("-shared", "-fPIC", "-O1", f"-Wl,-soname,{NO_DRIVER}")
# Every program that a script starts loads it too: it needs nothing but the C library.
LINK_FILES = (
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Wl,--as-needed", "-Wl,-z,initfirst"),
    "-shared",
)

UNITS = {name: tuple(files) for name, files in table_of(__file__)["units"].items()}
"""Files that are compiled as one source, since torch's headers take most of the time; all units take as long.

Names in the anonymous namespaces of a unit differ.
"""
TOGETHER_SOURCES = ("together", "streams", "clock")


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

    Beside it lie :data:`NO_DRIVER`, a CUDA driver without devices, and :data:`TOGETHER`.

    Raises:
        LaunchError: torch is too old, there is no C++ compiler, or it fails.
    """
    torch = torch_folder()
    version = importlib.metadata.version("torch")
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise LaunchError(
            f"the virtual device does not fit torch {version}, which is too old",
            where="rehearse",
            hint=f"Install a version that zerokit is tested with: torch {TESTED}",
        )
    strings = strings_of(torch)
    folder = _cache_folder(f"torch-{version}", SOURCES, strings)

    def make(library: Path) -> None:
        fits = _RELEASE.fullmatch(version) is not None
        if not (fits and _brought(library, prebuilt_folder(version, strings), torch)):
            console.note(f"Building the virtual device for torch {version} (once, about a minute)")
            compile_library(library, torch)

    return _built(folder / LIBRARY, make)


def built_files_library() -> Path:
    """The library that is preloaded to guard files; compiled if this is the first call.

    Raises:
        LaunchError: there is no C++ compiler, or it fails.
    """

    def make(library: Path) -> None:
        if not _brought(library, prebuilt_files_folder(), None):
            compile_files_library(library)

    return _built(_cache_folder("files", SOURCES / "files") / FILES, make)


def _built(library: Path, build: Callable[[Path], None]) -> Path:
    folder = library.parent
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Ranks and runs may come here at the same time; the lock dies with its holder.
        with open_private_file(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.is_file():
                build(library)
    except OSError as error:
        raise LaunchError(
            f"the virtual device cannot be built there: {error.strerror}",
            where=folder,
            hint="Make room, or name a folder you may write to as XDG_CACHE_HOME",
        ) from None
    return library


def _cache_folder(name: str, sources: Path, *more: str) -> Path:
    key = _digest(sources)
    key.update(" ".join([_compiler_name(), *more]).encode())
    return rehearsal_cache_folder() / f"{name}-{key.hexdigest()[:12]}"


def rehearsal_cache_folder() -> Path:
    """Where what a rehearsal compiles is kept for the next one."""
    return files.cache_folder() / "rehearsal"


def _digest(sources: Path) -> hashlib._Hash:
    key = hashlib.sha256(str((COMPILE, LINK, LINK_NO_DRIVER, LINK_FILES, UNITS)).encode())
    for source in sorted([*sources.glob("*.cpp"), *sources.glob("*.h")]):
        key.update(source.read_bytes())
    return key


def prebuilt_folder(version: str, strings: str) -> Path:
    """Where a wheel has the library for a release of torch: one for all its patches, on the CPU or CUDA."""
    release = ".".join(version.split(".")[:2])
    return PREBUILT / f"torch-{release}-abi{strings[-1]}-{_digest(SOURCES).hexdigest()[:12]}"


def prebuilt_files_folder() -> Path:
    """Where a wheel has the library that guards files."""
    return PREBUILT / f"files-{_digest(SOURCES / 'files').hexdigest()[:12]}"


_OPEN = "import ctypes, sys; [ctypes.CDLL(name, ctypes.RTLD_GLOBAL) for name in sys.argv[1:]]"


def _brought(library: Path, prebuilt: Path, torch: Path | None) -> bool:
    """Copy the wheel's library to `library`, if there is one and it opens here with all names it needs."""
    if not (prebuilt / library.name).is_file():
        return False
    before = [] if torch is None else [prebuilt / NO_DRIVER, *(torch / "lib" / name for name in TORCH)]
    # A torch of the same release that is built in another way may lack a name: found now, not in a run.
    opening = [sys.executable, "-I", "-c", _OPEN, *map(str, [*before, prebuilt / library.name])]
    if subprocess.run(opening, capture_output=True).returncode:
        return False
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        for file in sorted(prebuilt.iterdir(), key=lambda one: one.name == library.name):
            shutil.copy(file, scratch)
            Path(scratch, file.name).replace(library.with_name(file.name))
    return True


def _compiler_name() -> str:
    """As in make: CXX may hold options, or a program in front such as ccache."""
    return os.environ.get("CXX") or next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), "g++")


def _compiler() -> list[str]:
    compiler = shlex.split(_compiler_name())
    if not compiler or shutil.which(compiler[0]) is None:
        raise LaunchError(
            "no C++ compiler, with which zerokit builds the virtual device once",
            where="rehearse",
            hint="Install one: 'apt install g++' on Debian and Ubuntu, 'dnf install gcc-c++' on Fedora",
        )
    return compiler


def compile_library(library: Path, torch: Path) -> None:
    """Build `library` against the headers and libraries in `torch`; beside it NO_DRIVER and TOGETHER.

    Raises:
        LaunchError: there is no C++ compiler, or it fails.
    """
    compiler = _compiler()
    includes = ["-isystem", str(torch / "include")]
    includes += ["-isystem", str(torch / "include" / "torch" / "csrc" / "api" / "include")]
    strings = strings_of(torch)
    parts = library.parent / "parts"  # kept for the next time if this is interrupted
    make_folder(parts)
    objects = {name: parts / f"{name}.o" for name in UNITS}
    compiling = {}
    for name in (name for name in UNITS if not objects[name].is_file()):
        source = parts / f"{name}.cpp"
        write_file(source, "".join(f'#include "{SOURCES / file}.cpp"\n' for file in UNITS[name]))
        begun = objects[name].with_suffix(".begun")
        compiling[name] = [*compiler, *COMPILE, strings, *includes, "-c", str(source), "-o", str(begun)]
    linked, driver, together = parts / LIBRARY, parts / NO_DRIVER, parts / TOGETHER
    sources = [str(SOURCES / f"{name}.cpp") for name in TOGETHER_SOURCES]
    # Where they lie is not written down: whoever opens this has opened the installed torch before.
    libraries = ["-L", str(torch / "lib"), "-lc10", "-ltorch_cpu"]
    linking = {
        LIBRARY: [*compiler, *LINK, "-o", str(linked), *map(str, objects.values()), *libraries],
        NO_DRIVER: [*compiler, *LINK_NO_DRIVER, "-o", str(driver), str(SOURCES / "no_driver.cpp")],
        TOGETHER: [*compiler, *COMPILE, *LINK, "-o", str(together), *sources],
    }
    try:
        # The bar first: it imports much, and Ctrl-C within an import ends Python without an exit code.
        with console.progress(transient=True) as bar:
            task = bar.add_task("Compiling", total=len(compiling), note="")
            with closing(run_together(compiling, parts)) as ended:
                for name, outcome in ended:
                    _check(outcome)
                    objects[name].with_suffix(".begun").replace(objects[name])
                    bar.update(task, advance=1)
            _run(linking, parts)
    except (KeyboardInterrupt, SystemExit):
        console.note("Stopped; the next rehearsal goes on with what is compiled")
        raise
    driver.replace(library.with_name(NO_DRIVER))
    together.replace(library.with_name(TOGETHER))
    linked.replace(library)  # last: it says that the folder is complete
    shutil.rmtree(parts)


def strings_of(torch: Path) -> str:
    """Says to the compiler which std::string torch has: that of C++11, unlike the registry's before 2.7."""
    takes_an_old_one = b"_ZN3c105ErrorC1ENS_14SourceLocationESs"  # c10::Error::Error(c10::SourceLocation, std::string)
    is_new = takes_an_old_one not in (torch / "lib" / "libc10.so").read_bytes()
    return f"-D_GLIBCXX_USE_CXX11_ABI={int(is_new)}"


def compile_files_library(library: Path) -> None:
    """Build the library that guards files; raises as `compile_library`."""
    sources = map(str, sorted((SOURCES / "files").glob("*.cpp")))
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        linked = Path(scratch, FILES)
        command = [*_compiler(), *COMPILE, *LINK_FILES, "-o", str(linked), *sources, "-ldl"]
        _run({FILES: command}, Path(scratch))
        linked.replace(library)


def _run(commands: Mapping[str, Sequence[str]], scratch: Path) -> None:
    with closing(run_together(commands, scratch)) as ended:
        for _, outcome in ended:
            _check(outcome)


def _check(outcome: subprocess.CompletedProcess[str]) -> None:
    if outcome.returncode != 0:
        errors = [line for line in outcome.stderr.splitlines() if "error" in line] or [outcome.stderr[-300:]]
        raise LaunchError(
            f"the virtual device could not be built: {errors[0]}",
            where=Path(outcome.args[0]).name,
            hint=f"It is known to build with g++ 11 and later against torch {TESTED}",
        )

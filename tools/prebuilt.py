"""Builds the virtual device of the rehearsal for releases of torch, which a release's wheel then brings.

``python -m tools.prebuilt 2.8.0 2.9.1`` has pip fetch each torch, compiles against it, and writes
zerokit/rehearsal/native/prebuilt, which ``python -m build --wheel`` packs. One library serves a minor release
of torch: its patches, its CPU and CUDA builds, and every Python. It needs a C library that is no older than
that of the machine which built it: the workflow ``release`` does so in the container of manylinux_2_28, for
which torch's own wheels are made.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from zerokit.rehearsal.native.build import (
    FILES,
    LIBRARY,
    compile_files_library,
    compile_library,
    prebuilt_files_folder,
    prebuilt_folder,
    strings_of,
)

_LINKED = ("libc10.so", "libtorch_cpu.so")


def fetched(version: str, folder: Path) -> Path:
    """The headers of a torch, and what is linked with, below `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), f"torch=={version}"], check=True)
    wheel = next(folder.glob("torch-*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.startswith("torch/include/") or name in {f"torch/lib/{one}" for one in _LINKED}:
                packed.extract(name, folder)
    wheel.unlink()
    return folder / "torch"


def build(version: str) -> Path:
    """The library for a torch, where the wheel takes it from."""
    with tempfile.TemporaryDirectory() as scratch:
        torch = fetched(version, Path(scratch))
        library = prebuilt_folder(version, strings_of(torch)) / LIBRARY
        library.parent.mkdir(parents=True, exist_ok=True)
        compile_library(library, torch)
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="TORCH", help="releases such as 2.8.0")
    versions: list[str] = parser.parse_args().versions
    guard = prebuilt_files_folder() / FILES
    guard.parent.mkdir(parents=True, exist_ok=True)
    compile_files_library(guard)
    for library in (guard, *map(build, versions)):
        print(f"{library.parent.name}: {library.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()

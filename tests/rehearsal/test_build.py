"""Building the virtual device, by a compiler that only writes down what it is asked for."""

from __future__ import annotations

import _ctypes
import re
import stat
from pathlib import Path

import pytest

from zerokit.errors import LaunchError
from zerokit.rehearsal.native import build
from zerokit.rehearsal.native.build import built_files_library, built_library

COMPILER = """#!/bin/sh
echo "$*" >> "$0.calls"
for word; do before=$last; last=$word; case $before in -c) source=$word;; -o) output=$word;; esac; done
[ -n "$source" ] && basename "$source" >> "$0.log"
case $source in */kernels.cpp) test -e "$0.good" || { echo "error: out of memory" >&2; exit 1; };; esac
touch "$output"
"""


def test_what_is_compiled_when_a_build_ends_early_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "compiler.log"
    with pytest.raises(LaunchError, match="could not be built: error: out of memory"):
        built_library()
    (tmp_path / "compiler.good").touch()
    library = built_library()
    assert library.is_file()
    compiled = log.read_text().split()
    assert sorted({*compiled, "kernels.cpp"}) == sorted(set(compiled))
    assert {name: compiled.count(name) for name in compiled if compiled.count(name) > 1} == {"kernels.cpp": 2}
    assert {file.name for file in library.parent.iterdir()} == {library.name, "libcuda.so.1", "lock"}


@pytest.mark.parametrize("opens", [True, False])
def test_what_a_wheel_brings_is_taken_where_it_opens(
    opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-compiler-at-all")
    brought = build.prebuilt_files_folder() / build.FILES
    brought.parent.mkdir(parents=True)
    brought.write_bytes(Path(_ctypes.__file__).read_bytes() if opens else b"of another machine")
    if opens:
        assert built_files_library().read_bytes() == brought.read_bytes()
    else:
        with pytest.raises(LaunchError, match="no C\\+\\+ compiler"):
            built_files_library()


@pytest.mark.parametrize("flags", ["COMPILE", "LINK", "LINK_NO_DRIVER", "LINK_FILES"])
def test_what_was_built_otherwise_is_another_one(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.prebuilt_folder("2.9.1", "1"), build.prebuilt_files_folder()
    monkeypatch.setattr(build, flags, (*getattr(build, flags), "-g"))
    after = build.prebuilt_folder("2.9.1", "1"), build.prebuilt_files_folder()
    assert not set(before) & set(after)


@pytest.mark.parametrize(("constructor", "strings"), [("ESs", 0), ("ENSt7__cxx1112basic_stringE", 1)])
def test_strings_are_of_the_kind_that_torch_was_built_with(
    constructor: str, strings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "torch" / "lib" / "libc10.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocation" + constructor.encode() + b"\0")
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "compiler.good").touch()
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "torch_folder", lambda: tmp_path / "torch")
    built_library()
    compiled = [call for call in (tmp_path / "compiler.calls").read_text().splitlines() if " -c " in call]
    assert compiled
    assert all(f"-D_GLIBCXX_USE_CXX11_ABI={strings} " in call for call in compiled)


@pytest.mark.parametrize("version", ["1.13.1", "2.4.1+cpu"])
def test_a_torch_that_is_too_old_is_one_line(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.metadata, "version", lambda _: version)
    with pytest.raises(LaunchError, match=f"does not fit torch {re.escape(version)}, which is too old"):
        built_library()


@pytest.mark.parametrize(("version", "fits"), [("2.9.1+cu128", True), ("2.9.0a0+145a3a7.nv25.10", False)])
def test_what_a_wheel_brings_is_of_releases(
    version: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(build, "torch_folder", lambda: tmp_path)
    monkeypatch.setattr(build, "strings_of", lambda _: "1")
    monkeypatch.setattr(build.importlib.metadata, "version", lambda _: version)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-compiler-at-all")
    folder = build.prebuilt_folder(version, "1")
    for file in (
        folder / build.LIBRARY,
        folder / build.NO_DRIVER,
        *(tmp_path / "lib" / name for name in build.TORCH),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(Path(_ctypes.__file__).read_bytes())
    if fits:
        assert built_library().is_file()
    else:
        with pytest.raises(LaunchError, match="no C\\+\\+ compiler"):
            built_library()

"""Building the virtual device, by a compiler that only writes down what it is asked for."""

from __future__ import annotations

import _ctypes
import os
import re
import select
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from zerokit.errors import LaunchError
from zerokit.rehearsal.native import build
from zerokit.rehearsal.native.build import built_files_library, built_library

COMPILER = """#!/bin/sh
echo "$*" >> "$0.calls"
for word; do before=$last; last=$word; case $before in -c) source=$word;; -o) output=$word;; esac; done
[ -z "$source" ] && { touch "$output"; exit; }
grep -o '[a-z_]*[.]cpp' "$source" | sort > "$output.sources"
cat "$output.sources" >> "$0.log"
grep -q /device.cpp "$source" && test ! -e "$0.good" && { echo "error: out of memory" >&2; exit 1; }
touch "$output"
"""

NOT_IN_UNITS = {"no_driver.cpp", "together.cpp"}
"""Sources of libraries of their own."""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Is used for builds in a cache of their own."""
    return _compiler(COMPILER, tmp_path, monkeypatch)


def _compiler(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = folder / "compiler"
    compiler.write_text(script)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return compiler


def test_what_is_compiled_when_a_build_ends_early_is_not_compiled_again(
    compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # the unit with device.cpp is the last
    log = compiler.with_suffix(".log")
    with pytest.raises(LaunchError, match="could not be built: error: out of memory"):
        built_library()
    compiler.with_suffix(".good").touch()
    library = built_library()
    assert library.is_file()
    compiled = log.read_text().split()
    assert set(compiled) == {file.name for file in build.SOURCES.glob("*.cpp")} - NOT_IN_UNITS
    again = {name for name in compiled if compiled.count(name) > 1}
    assert "device.cpp" in again
    assert again < set(compiled)
    assert {file.name for file in library.parent.iterdir()} == {
        *(library.name, "libcuda.so.1", build.TOGETHER, "lock")
    }


def test_each_source_is_in_one_unit() -> None:
    sources = sorted(file.stem for file in build.SOURCES.glob("*.cpp"))
    of_units = [name for unit in build.UNITS.values() for name in unit]
    assert sorted(["no_driver", "together", *of_units]) == sources


# As g++ does, it has another program work, which it leaves alone when it is ended.
WAITING_COMPILER = """#!/bin/sh
exec 9> "$0.pipe"
echo begun >&9
sleep 600 &
wait
"""
SOON = 60.0
"""Seconds: without end, for what takes none."""


def _told(pipe: int) -> Iterator[bytes]:
    """What compilers write, as it comes, until all of them have ended."""
    while select.select([pipe], [], [], SOON)[0]:
        written = os.read(pipe, 1 << 16)
        if not written:
            return
        yield written
    pytest.fail("a compiler still runs")


@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [(signal.SIGTERM, False, 143), (signal.SIGHUP, False, 129), (signal.SIGINT, True, 130)],
)
def test_a_build_that_is_interrupted_ends_with_its_compilers(
    number: signal.Signals, whole_group: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiler(WAITING_COMPILER, tmp_path, monkeypatch)
    os.mkfifo(tmp_path / "compiler.pipe")
    pipe = os.open(tmp_path / "compiler.pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "train.py").write_text("raise SystemExit('not to be reached')")
    process = subprocess.Popen(
        [*processes.INTERRUPTIBLE, "-m", "zerokit", "rehearse", "--num-gpus", "2", "train.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with os.fdopen(os.pidfd_open(process.pid)) as ends:
            assert pipe in select.select([pipe, ends], [], [])[0], process.communicate()
        begun = len(next(_told(pipe)).split())
        (os.killpg if whole_group else os.kill)(process.pid, number)
        out, err = process.communicate()
        begun += sum(len(written.split()) for written in _told(pipe))
    finally:
        processes.Work([process.pid]).end()
        os.close(pipe)
    assert (process.returncode, out) == (code, ""), err
    first, last = err.splitlines()
    assert first.startswith("Building the virtual device")
    assert last == "Stopped; the next rehearsal goes on with what is compiled"
    assert begun <= (os.cpu_count() or 1)  # none was started in place of those that were ended


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not in it could not be built."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-compiler-at-all")


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("opens", [True, False])
def test_what_a_wheel_brings_is_taken_where_it_opens(opens: bool) -> None:
    brought = build.prebuilt_files_folder() / build.FILES
    brought.parent.mkdir(parents=True)
    brought.write_bytes(Path(_ctypes.__file__).read_bytes() if opens else b"of another machine")
    if opens:
        assert built_files_library().read_bytes() == brought.read_bytes()
    else:
        with pytest.raises(LaunchError, match="no C\\+\\+ compiler"):
            built_files_library()


@pytest.mark.parametrize("how", ["COMPILE", "LINK", "LINK_NO_DRIVER", "LINK_FILES", "UNITS"])
def test_what_was_built_otherwise_is_another_one(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of other units, too: a source that has moved would be missing in the library, or in it twice."""
    before = build.prebuilt_folder("2.9.1", "1"), build.prebuilt_files_folder()
    monkeypatch.setattr(build, how, (*getattr(build, how), "-g"))
    after = build.prebuilt_folder("2.9.1", "1"), build.prebuilt_files_folder()
    assert not set(before) & set(after)


@pytest.mark.parametrize(("constructor", "strings"), [("ESs", 0), ("ENSt7__cxx1112basic_stringE", 1)])
def test_strings_are_of_the_kind_that_torch_was_built_with(
    constructor: str, strings: int, compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "torch" / "lib" / "libc10.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocation" + constructor.encode() + b"\0")
    compiler.with_suffix(".good").touch()
    monkeypatch.setattr(build, "torch_folder", lambda: tmp_path / "torch")
    built_library()
    compiled = [call for call in compiler.with_suffix(".calls").read_text().splitlines() if " -c " in call]
    assert compiled
    assert all(f"-D_GLIBCXX_USE_CXX11_ABI={strings} " in call for call in compiled)


@pytest.mark.parametrize("version", ["1.13.1", "2.4.1+cpu"])
def test_a_torch_that_is_too_old_is_one_line(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.metadata, "version", lambda _: version)
    with pytest.raises(LaunchError, match=f"does not fit torch {re.escape(version)}, which is too old"):
        built_library()


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(("version", "fits"), [("2.9.1+cu128", True), ("2.9.0a0+145a3a7.nv25.10", False)])
def test_what_a_wheel_brings_is_of_releases(
    version: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "torch_folder", lambda: tmp_path)
    monkeypatch.setattr(build, "strings_of", lambda _: "1")
    monkeypatch.setattr(build.importlib.metadata, "version", lambda _: version)
    folder = build.prebuilt_folder(version, "1")
    for file in (folder / build.LIBRARY, folder / build.NO_DRIVER, *(tmp_path / "lib" / name for name in build.TORCH)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(Path(_ctypes.__file__).read_bytes())
    if fits:
        assert built_library().is_file()
    else:
        with pytest.raises(LaunchError, match="no C\\+\\+ compiler"):
            built_library()

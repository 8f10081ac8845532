"""Building the virtual device, by a compiler that only writes down what it is asked for."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from zerokit.errors import LaunchError
from zerokit.rehearsal.native.build import built_library

COMPILER = """#!/bin/sh
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

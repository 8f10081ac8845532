"""DeepSpeed's extensions: whose lock is waited for and whose removed, and what is compiled again."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerokit import console
from zerokit.distributed import extensions
from zerokit.distributed.extensions import compile_extensions, own_ninja
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import LaunchError

pytestmark = pytest.mark.torch


class Builder:
    """Of an extension that "compiles" in no time, unless it is there."""

    name = "an_op"
    compiled = 0

    def __init__(self, folder: Path) -> None:
        self.library = folder / self.name / "an_op.so"

    def load(self, *, verbose: bool) -> None:
        assert not self.library.with_name("lock").exists(), "torch would wait"
        if not self.library.exists():
            self.library.parent.mkdir(exist_ok=True)
            self.library.write_bytes(b"machine code")
            self.compiled += 1
        assert self.library.read_bytes() == b"machine code", "SIGBUS"


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(console, "note", said.append)
    return said


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> Builder:
    """Loaded once, in the folder of this environment."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(extensions, "own_folder", lambda: tmp_path)
    monkeypatch.setattr(extensions, "check_compiler", lambda: None)
    builder = Builder(tmp_path)
    builders = {"CPUAdamBuilder": builder}  # for communication there is none
    accelerator = SimpleNamespace(create_op_builder=builders.get)
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: accelerator)
    load()
    assert builder.compiled == 1
    notes.clear()
    return builder


def load() -> None:
    compile_extensions(RankGroup(Ranks()), cpu_optimizer="Adam")


def test_what_is_compiled_is_not_compiled_again(builder: Builder, notes: list[str]) -> None:
    load()
    assert (builder.compiled, notes) == (1, [])


@pytest.mark.parametrize("content", [b"", b"machine co", b"machine cod\0"])
def test_a_damaged_library_is_compiled_again(content: bytes, builder: Builder, notes: list[str]) -> None:
    builder.library.write_bytes(content)
    load()
    load()
    assert builder.compiled == 2
    assert notes[0] == f"{builder.library.parent} is damaged: it is compiled again"


def test_a_lock_left_behind_is_removed(builder: Builder, notes: list[str]) -> None:
    builder.library.with_name("lock").touch()
    load()
    assert notes == []


@pytest.mark.parametrize("own", [True, False])
def test_a_lock_that_is_held_stays_and_its_holder_is_named(
    own: bool, builder: Builder, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = builder.library.with_name("lock")
    if not own:
        monkeypatch.setattr(extensions, "own_folder", lambda: Path("/elsewhere"))
    monkeypatch.setattr(builder, "load", lambda **_: None)
    with lock.open("w"):
        load()
        assert notes == [f"waiting for {lock} to go: process {os.getpid()} compiles there"]
    notes.clear()
    load()
    assert lock.exists() is not own
    assert notes == ([] if own else [f"waiting for {lock} to go: remove it if no program compiles there"])


def test_waiting_for_another_run_says_for_whom(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    waits = threading.Event()

    def note(text: str) -> None:
        said.append(text)
        waits.set()

    monkeypatch.setattr(console, "note", note)
    other = threading.Thread(target=load)
    with (tmp_path / "compiling").open("a+") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        other.start()
        waits.wait()
    other.join()
    assert said[0].startswith(f"waiting for process {os.getpid()} on ")
    assert said[0].endswith(f", which compiles DeepSpeed's extensions in {tmp_path}")


def test_a_folder_that_cannot_be_written_is_named(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match=r"^TORCH_EXTENSIONS_DIR: DeepSpeed's extensions cannot be compiled in "):
        load()


@pytest.mark.parametrize(
    "cause",
    [
        "/w/a.cpp:1:10: fatal error: cassert: No such file or directory",
        "virtual memory exhausted: Cannot allocate memory",
        "/tmp/c.s: Fatal error: can't write 73 bytes to section .text of a.o: 'No space left on device'",
        "c++: fatal error: Killed signal terminated program cc1plus",
    ],
)
def test_a_compiler_s_own_words_are_told_not_its_command(cause: str) -> None:
    class Fails:
        name = "an_op"

        def load(self, *, verbose: bool) -> None:
            command = "[1/3] c++ -DTORCH_EXTENSION_NAME=an_op -Werror -c a.cpp -o a.o"
            said = f"Error building extension 'an_op': {command}\nFAILED: [code=1] a.o\n{command}\n{cause}\nlast"
            raise RuntimeError(said)

    with pytest.raises(LaunchError) as caught:
        extensions._load(Fails())
    assert str(caught.value) == f"this machine: DeepSpeed's an_op cannot be built: {cause}. {caught.value.hint}"


def _programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(0o755)
    return folder


def _find_own_ninja(*path: Path, extensions_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are searched for programs afterwards, however often it is asked for."""
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, path)))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(extensions_folder))
    for _ in range(3):
        extensions.choose_extensions_folder()
    return os.environ["PATH"].split(os.pathsep)


def test_a_link_to_this_environment_s_own_ninja_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one, of the system, takes what this one has built for outdated, and the other way round."""
    own, system = own_ninja(), _programs(tmp_path / "system", "ninja")
    assert own is not None
    for path in ([system], []):
        first, *rest = _find_own_ninja(*path, extensions_folder=tmp_path / "made", monkeypatch=monkeypatch)
        assert rest == ([str(folder) for folder in path] or os.defpath.split(os.pathsep))
        found = shutil.which("ninja")
        assert found is not None
        assert own.samefile(found)
        assert [file.name for file in Path(first).iterdir()] == ["ninja"]


def test_where_the_own_ninja_is_found_the_path_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_ninja()
    assert own is not None
    path = [_programs(tmp_path / "modules", "g++"), own.parent, _programs(tmp_path / "system", "ninja")]
    found = _find_own_ninja(*path, extensions_folder=tmp_path / "made", monkeypatch=monkeypatch)
    assert found == [str(folder) for folder in path]
    assert not (tmp_path / "made").exists()


def test_compilers_beside_the_own_ninja_hide_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a system's Python, beside which the system's compilers lie, and `module load` names others."""
    system = _programs(tmp_path / "system", "python3", "ninja", "g++", "nvcc")
    modules = _programs(tmp_path / "modules", "ninja", "g++")
    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    monkeypatch.setattr(sys, "executable", str(system / "python3"))
    _find_own_ninja(modules, system, extensions_folder=tmp_path / "made", monkeypatch=monkeypatch)
    found = {name: os.path.realpath(shutil.which(name) or "") for name in ("ninja", "g++", "nvcc")}
    assert found == {"ninja": f"{system}/ninja", "g++": f"{modules}/g++", "nvcc": f"{system}/nvcc"}


def test_a_ninja_that_pip_has_put_elsewhere_is_this_environment_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --user` puts it into ~/.local/bin, whatever lies beside Python."""
    packages = tmp_path / "lib" / "ninja-9.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: ninja\nVersion: 9\n")
    (packages / "RECORD").write_text("../bin/ninja,,\nninja/__init__.py,,\n")
    _programs(tmp_path / "bin", "ninja")
    monkeypatch.syspath_prepend(packages.parent)
    assert own_ninja() == tmp_path / "bin" / "ninja"

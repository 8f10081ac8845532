"""DeepSpeed's extensions: whose lock is waited for and whose removed, and what is compiled again."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerokit import console
from zerokit.distributed import extensions
from zerokit.distributed.extensions import compile_extensions
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
    with pytest.raises(
        LaunchError, match=r"^TORCH_EXTENSIONS_DIR: DeepSpeed's extensions cannot be compiled in "
    ):
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
            said = (
                f"Error building extension 'an_op': {command}\nFAILED: [code=1] a.o\n{command}\n{cause}\nlast"
            )
            raise RuntimeError(said)

    with pytest.raises(LaunchError) as caught:
        extensions._load(Fails())
    assert (
        str(caught.value) == f"this machine: DeepSpeed's an_op cannot be built: {cause}. {caught.value.hint}"
    )


def test_this_environment_s_own_ninja_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one, of the system, takes what this one has built for outdated, and the other way round."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for _ in range(2):
        extensions.choose_extensions_folder()
        assert os.environ["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), str(tmp_path)]

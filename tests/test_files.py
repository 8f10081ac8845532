"""Files are written whole or not at all, and stay what they were: their permissions, their links."""

from __future__ import annotations

import ast
import errno
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import processes
from tests.sources import PACKAGE, nodes
from zerokit.errors import ZerokitError
from zerokit.files import check_writable, is_own_file, new_file, write_file

KILLED = """
import os, signal, sys
from zerokit.files import write_file
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_file(sys.argv[1], "new")
"""


def test_a_process_that_is_killed_before_the_last_step_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text("old")
    ended = processes.run([sys.executable, "-c", KILLED, file])
    assert ended.returncode == -signal.SIGKILL
    assert file.read_text() == "old"
    write_file(file, "new")  # what the killed one left is in nobody's way
    assert file.read_text() == "new"


FULL = """
import resource, signal, sys
from zerokit.errors import ZerokitError
from zerokit.files import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file(sys.argv[1], "x" * 100_000)
except ZerokitError as error:
    print(error)
"""


def test_what_does_not_fit_on_the_disk_leaves_the_old_file_and_one_line(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text("old")
    printed = processes.checked([sys.executable, "-c", FULL, file])
    assert printed.startswith(f"{file}: cannot be written: {os.strerror(errno.EFBIG)}. ")
    assert printed.count("\n") == 1
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_asks_for_room() -> None:
    with pytest.raises(ZerokitError, match=r"^/dev/full: cannot be written: No space left.* Make room"):
        write_file("/dev/full", "x" * 100_000, follow_links=True)


def test_a_block_that_fails_leaves_the_old_file_and_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text("old")
    with pytest.raises(ZeroDivisionError), new_file(file) as opened:
        opened.writelines([b"half", b"%d" % (1 // 0)])
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_of_another_file_is_not_blamed_on_the_output(tmp_path: Path) -> None:
    file, other = tmp_path / "ds.json", tmp_path / "absent.json"
    with pytest.raises(FileNotFoundError) as caught, new_file(file) as opened:
        opened.write(other.read_bytes())
    assert caught.value.filename == str(other)
    assert list(tmp_path.iterdir()) == []


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ds.json"
    file.touch()
    file.chmod(0o600)
    modes = []
    really = Path.chmod

    def chmod(path: Path, mode: int) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))  # as it was made
        really(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    before = os.umask(0)
    try:
        with new_file(file):
            modes += [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()]
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600, 0o600]


def test_the_old_file_stands_until_the_block_ends(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text("old")
    with new_file(file) as opened:
        opened.write(b"new")
        opened.flush()
        assert file.read_text() == "old"
    assert file.read_text() == "new"


@given(st.sampled_from([0o600, 0o640, 0o644, 0o664, 0o755]), st.sampled_from([0o002, 0o022, 0o077]))
def test_an_existing_file_keeps_its_mode_and_a_new_one_follows_the_umask(
    tmp_path_factory: pytest.TempPathFactory, mode: int, umask: int
) -> None:
    folder = tmp_path_factory.mktemp("modes")
    old, new = folder / "old", folder / "new"
    old.touch()
    old.chmod(mode)
    before = os.umask(umask)
    try:
        write_file(old, "a")
        write_file(new, "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == mode
    assert stat.S_IMODE(new.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("there", [True, False], ids=["link to a file", "link to no file yet"])
def test_a_link_that_a_person_names_stays_a_link(tmp_path: Path, there: bool) -> None:
    real, link = tmp_path / "folder" / "real.json", tmp_path / "link.json"
    real.parent.mkdir()
    if there:
        real.touch()
    link.symlink_to("folder/real.json")
    write_file(link, "new", follow_links=True)
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert list(real.parent.iterdir()) == [real]


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "link to nothing", "second name", "pipe"])
def test_at_a_name_of_its_own_zerokit_writes_a_file_of_its_own(kind: str, force: bool, tmp_path: Path) -> None:
    file, theirs = tmp_path / "run.json", tmp_path / "theirs"
    if kind == "link to a folder":
        theirs.mkdir()
    elif kind != "link to nothing":
        theirs.write_text("theirs")
    if kind == "second name":
        file.hardlink_to(theirs)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(theirs)
    if not force:
        with pytest.raises(ZerokitError, match="the file exists"):
            write_file(file, "new", force=False)
        return
    write_file(file, "new")
    assert is_own_file(file)
    assert file.read_text() == "new"
    assert not theirs.exists() or theirs.is_dir() or theirs.read_text() == "theirs"
    assert theirs.exists() == (kind != "link to nothing")
    assert {path.name for path in tmp_path.iterdir()} <= {"run.json", "theirs"}


@pytest.mark.parametrize(("names", "is_own"), [(0, True), (1, True), (2, False)])
def test_a_file_system_may_count_no_names(
    names: int, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    state = list(file.lstat())
    state[3] = names
    monkeypatch.setattr(Path, "lstat", lambda _: os.stat_result(state))
    assert is_own_file(file) == is_own


def test_a_pipe_is_written_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "through", follow_links=True)
    assert os.read(reader, 100) == b"through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_a_name_of_the_greatest_length(tmp_path: Path) -> None:
    write_file(tmp_path / ("ü" * 127), "x")
    assert [file.name for file in tmp_path.iterdir()] == ["ü" * 127]


IN_A_FILE = "cannot be written: {folder}/file is not a folder. Name a file in a folder"
TOO_LONG = os.strerror(errno.ENAMETOOLONG)


def is_there(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file"


def is_read_only(folder: Path) -> Path:
    is_there(folder).chmod(0o444)
    return folder / "file"


def is_a_link_to_itself(folder: Path) -> Path:
    (folder / "link").symlink_to("link")
    return folder / "link"


@pytest.mark.parametrize(
    ("make", "force", "message"),
    [
        (lambda folder: folder, True, "is a folder. Name a file in it"),
        (lambda folder: folder / "no" / "x", True, "cannot be written: its folder does not exist. Make "),
        (lambda folder: is_there(folder) / "x", True, IN_A_FILE),
        (lambda folder: is_there(folder) / "no" / "x", True, IN_A_FILE),
        (lambda folder: folder / ("x" * 300), True, f"cannot be written: {TOO_LONG}. Choose a shorter name"),
        (lambda folder: folder / ("x" * 300) / "x", True, f"cannot be written: {TOO_LONG}. Choose a shorter"),
        (lambda folder: folder / "no" / "no" / "x", True, "cannot be written: its folder does not exist. Make "),
        (lambda folder: Path(os.devnull, "x"), True, f"cannot be written: {os.devnull} is not a folder. "),
        (is_there, False, "the file exists. Add --force to overwrite it"),
        (is_a_link_to_itself, True, f"cannot be written: {os.strerror(errno.ELOOP)}. Name a file in"),
        (lambda folder: is_a_link_to_itself(folder) / "x", True, "cannot be written: "),
        (is_read_only, True, "cannot be written: the file is read-only. Name another, or try chmod u+w"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_left_alone(
    make: Callable[[Path], Path], force: bool, message: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for attempt in (check_writable, lambda path, **options: write_file(path, "x", **options)):
        with pytest.raises(ZerokitError) as caught:
            attempt(path, force=force, follow_links=True)
        assert str(caught.value).startswith(f"{path}: {message.format(folder=tmp_path)}")
    assert sorted(tmp_path.rglob("*")) == before
    assert all(file.is_dir() or file.is_symlink() or file.read_bytes() == b"" for file in before)


def writes_by_itself(node: ast.AST) -> bool:
    """Whether a call writes a file past :mod:`zerokit.files`: `write_text`, `open(..., "w")`, `io.FileIO`."""
    if isinstance(node, ast.Attribute) and node.attr == "FileIO":
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("write_text", "write_bytes", "NamedTemporaryFile", "savez", "savez_compressed"):
        return not (node.args and isinstance(node.args[0], ast.Name) and node.args[0].id == "file")
    modes = [word.value for word in node.args if isinstance(word, ast.Constant) and name == "open"]
    return any(isinstance(mode, str) and mode[:1] in "wax" for mode in modes)


WRITING = re.compile(r"FileIO|write_(text|bytes)|NamedTemporaryFile|savez|open")
"""What such a call has in its name."""
ALLOWED = {
    "files.py": "the writer itself",
    "checkpoint/torch_file_writer.py": "a member of an archive",
    "data/table_cache.py": "a table in a hidden folder that gets its name when it is complete",
    "rehearsal/parent/processes.py": "the log of a process",
    "training/progress.py": "a switch of the kernel's",
}


def test_nothing_else_writes_files() -> None:
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if WRITING.search(file.read_text(encoding="utf-8")) and any(map(writes_by_itself, nodes(file)))
    }
    assert found == set(ALLOWED)


def test_a_file_with_two_names_that_a_person_names_stays_one_file(tmp_path: Path) -> None:
    file, other = tmp_path / "ds.json", tmp_path / "other.json"
    file.write_text("the old one, which is longer")
    other.hardlink_to(file)
    write_file(file, "new", follow_links=True)
    assert other.read_text() == file.read_text() == "new"
    assert other.samefile(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds.json", "other.json"]


def test_a_file_keeps_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = (tmp_path / "ds.json").resolve()
    file.write_text("old")
    given: list[tuple[int, int]] = []
    stat_of, theirs = Path.stat, 4242

    def of_another(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat_of(self, follow_symlinks=follow_symlinks)
        return os.stat_result((*found[:4], theirs, *found[5:])) if str(self) == str(file) else found

    def refuse(path: Path, user: int, group: int) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(Path, "stat", of_another)
    monkeypatch.setattr(os, "chown", refuse)
    before = file.stat().st_ino
    write_file(file, "new")
    assert (file.read_text(), file.stat().st_ino) == ("new", before)  # written where it lies
    monkeypatch.setattr(os, "chown", lambda path, user, group: given.append((user, group)))
    write_file(file, "newer")
    assert (file.read_text(), given) == ("newer", [(theirs, file.stat().st_gid)])
    assert file.stat().st_ino != before

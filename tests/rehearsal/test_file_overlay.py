"""What a rehearsed script does to files: it sees it done, and none of it is."""

from __future__ import annotations

import errno
import os
import random
import re
import sqlite3
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import processes
from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.rehearsal.recordings import job, training
from zerokit.rehearsal.parent.file_overlay import FileOverlay
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import FileChanges
from zerokit.rehearsal.report.tables import print_report

_OPERATIONS = 120


def _tree(folder: Path, chance: random.Random, depth: int = 0) -> None:
    folder.mkdir(parents=True)
    for name in "abcd":
        drawn = chance.random()
        if drawn < 0.3 and depth < 3:
            _tree(folder / name, chance, depth + 1)
        elif drawn < 0.6:
            (folder / name).write_text(name * chance.randint(0, 9))
        elif drawn < 0.7:
            (folder / name).symlink_to(chance.choice(["a", "b", "../a", "c/d", "."]))
    (folder / "l").symlink_to(chance.choice(["a", "b/c", "../b"]))


def _state(folder: Path) -> list[tuple[str, int, int, str]]:
    """All that a careless rehearsal would change: names, kinds and modes, times, content."""
    state = []
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text("latin-1") if path.is_file() else ""
        state.append((str(path.relative_to(folder)), found.st_mode, found.st_mtime_ns, content))
    return state


def _python(overlay: FileOverlay, cwd: Path, *words: str | Path) -> str:
    done = processes.run([sys.executable, *words], cwd=cwd, env={**os.environ, **overlay.environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", range(6))
def test_a_script_sees_what_it_would_see_on_the_disk(tmp_path: Path, seed: int) -> None:
    plain, guarded = tmp_path / "plain" / "work", tmp_path / "guarded" / "work"
    for folder in (plain, guarded):
        _tree(folder, random.Random(seed))
    before = _state(guarded)
    words = (SCRIPTS / "file_operations.py", str(seed), str(_OPERATIONS))
    expected = processes.run([sys.executable, *words], cwd=plain).stdout
    with FileOverlay(tmp_path / "overlay", working=[guarded], written=[]) as overlay:
        found = _python(overlay, guarded, *words)
    assert found.splitlines() == expected.replace(str(plain), str(guarded)).splitlines()
    assert len(found.splitlines()) > _OPERATIONS / 2
    assert _state(guarded) == before
    assert not (tmp_path / "overlay").exists()


def test_the_files_of_a_person_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    (work / "runs" / "checkpoint-9").mkdir(parents=True)
    temporary.mkdir()
    for name in ("runs/checkpoint-9/weights", "notes.txt", "data.csv", "best.txt", "log.txt", "array.bin"):
        (work / name).write_text("precious\n")
    with sqlite3.connect(work / "runs.db") as database:
        database.execute("create table runs as select 1")
    before = _state(work)
    monkeypatch.setenv("TMPDIR", str(temporary))
    words = ("--num-gpus", 2, "--rank", 0, "--trace", "trace.json", "--format", "json")
    rehearsed = rehearse(*words, SCRIPTS / "overwrites.py", temporary, cwd=work)
    files = rehearsed.report["files"]
    (work / "trace.json").unlink()  # which was asked for
    assert _state(work) == before
    assert (temporary / "kept.txt").read_text() == "temporary"
    for line in (
        "log ['precious', 'another']",
        "rust 28",
        "c++ 8",
        "rows [(1,), (2,)]",
        "seen array.bin data.old log.txt runs runs.db runs/best.txt runs/ids.parquet runs/ids.safetensors runs/new",
    ):
        assert line in rehearsed.err
    written = ["array.bin", "data.old", "log.txt", "runs.db"]
    written += [f"runs/{name}" for name in ("best.txt", "ids.parquet", "ids.safetensors")]
    assert set(files["first_written"]) >= {str(work / name) for name in written}
    changed = ["array.bin", "log.txt", "runs.db"]
    assert files["first_written"][: len(changed)] == [str(work / name) for name in changed]
    deleted = ["best.txt", "data.csv", "notes.txt", "runs/checkpoint-9/weights"]
    assert files["first_deleted"] == [str(work / name) for name in deleted]
    assert files["deleted"] == len(deleted)
    assert files["written_bytes"] > 0


def test_calls_past_the_c_library_are_seen(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "precious").write_text("mine")
    call = "import ctypes, os; unlinkat = {'x86_64': 263, 'aarch64': 35}[os.uname().machine];"
    call += "print(ctypes.CDLL(None).syscall(unlinkat, -100, b'precious', 0), os.listdir())"
    with FileOverlay(tmp_path / "overlay", working=[work], written=[]) as overlay:
        assert _python(overlay, work, "-c", call).strip() == "0 []"
        changes = overlay.changes()
    assert changes is not None
    assert (changes.first_deleted, changes.guarded) == ([str(work / "precious")], True)
    assert (work / "precious").exists()


def _ways() -> list[str]:
    text = (SCRIPTS / "other_names.py").read_text()
    return re.findall(r'^@way\ndef (\w+)|^    "(\w+)": f?"/', text, re.MULTILINE)


def test_files_are_the_same_by_whatever_name_they_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    for folder in (work, temporary):
        folder.mkdir()
    names = [one or other for one, other in _ways()]
    for name in names:
        (work / name).write_text("precious")
    for name in ("linked_before", "attributes_linked_before"):
        os.link(work / name, temporary / name)
    before, folder_time = _state(work), work.stat().st_mtime_ns
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    later = SimpleNamespace(time=lambda: 2**33)  # than the files, however slow the machine
    monkeypatch.setattr("zerokit.rehearsal.parent.file_overlay.time", later)
    words = (SCRIPTS / "other_names.py", work, temporary)
    with FileOverlay(tmp_path / "overlay", working=[work], written=[]) as overlay:
        said = dict(line.split(" ", 1) for line in _python(overlay, work, *words).splitlines())
    assert _state(work) == before
    assert work.stat().st_mtime_ns == folder_time
    assert (temporary / "linked_before").read_text() == "cha", "which is the script's own"
    unlike = {
        **dict.fromkeys(("removed", "renamed"), "ENOENT"),
        **dict.fromkeys(("call_of_openat2", "call_by_x32"), "ENOSYS"),
        **dict.fromkeys(("changed_root", "mounted"), "EPERM"),
        "flags_of_inode": "ENOTSUP",
        "truncated": "pre",
        "reopened_and_mapped": "changeds",
        **dict.fromkeys(("new_entries", "attributes", "attributes_without_a_path", "without_a_name"), "precious"),
        **dict.fromkeys(("linked_before", "attributes_linked_before"), "precious"),
    }
    copied = {"linked_into_temporary", "linked_by_descriptor", "linked_without_a_path", "linked_beside"}
    for name in names:
        # A hard link is to a copy: a file of the disk has no second name that could be written into.
        wanted = "precious" if name in copied else unlike.get(name, "changed")
        assert said[name] == wanted, name


def test_hard_links_of_the_script_s_own_in_a_temporary_folder_are_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    for folder in (work, temporary):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    link = "import os, sys; from pathlib import Path; one, other = map(Path, ('one', 'other'));"
    link += "os.chdir(sys.argv[1]); one.touch(); os.link(one, other); other.write_text('x');"
    link += "print(one.read_text())"
    with FileOverlay(tmp_path / "overlay", working=[work], written=[]) as overlay:
        assert _python(overlay, work, "-c", link, temporary).strip() == "x"


def test_python_keeps_what_it_compiles_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, work = tmp_path / "site-packages", tmp_path / "work"
    for folder in (site, work):
        folder.mkdir()
        (folder / f"{folder.name[:4]}_module.py").write_text("open(__file__ + '.data', 'w').close()")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(site))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    use = f"import sys; sys.path += [{str(site)!r}, {str(work)!r}]; import site_module, work_module"
    with FileOverlay(tmp_path / "overlay", working=[tmp_path], written=[]) as overlay:
        _python(overlay, work, "-c", use)
        changes = overlay.changes()
    assert [file.suffix for file in (site / "__pycache__").iterdir()] == [".pyc"]
    assert not (work / "__pycache__").exists()
    assert changes is not None
    assert changes.first_written == [str(site / "site_module.py.data"), str(work / "work_module.py.data")]


def test_processes_that_are_forked_meanwhile_stop_nobody(tmp_path: Path) -> None:
    with FileOverlay(tmp_path / "overlay", working=[tmp_path], written=[]) as overlay:
        out = _python(overlay, tmp_path, SCRIPTS / "forks_while_writing.py")
    assert out.strip() == "[150, 150, 150, 150]"


def test_a_thread_that_holds_signals_back_is_guarded_too(tmp_path: Path) -> None:
    hold = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());"
    hold += "import os; os.mkdir('new'); print(os.listdir())"
    with FileOverlay(tmp_path / "overlay", working=[tmp_path], written=[tmp_path / "overlay"]) as overlay:
        assert "new" in _python(overlay, tmp_path, "-c", hold)
    assert not (tmp_path / "new").exists()


def test_what_is_too_large_to_copy_is_opened_for_reading(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with (work / "huge.bin").open("wb") as file:
        file.write(b"start")
        file.truncate(2**43)  # of which five bytes lie on the disk
    use = "import os; f = os.open('huge.bin', os.O_RDWR); print(os.read(f, 5))\n"
    use += "try: os.write(f, b'x')\nexcept OSError as error: print(error.errno)"
    with FileOverlay(tmp_path / "overlay", working=[work], written=[]) as overlay:
        answer = _python(overlay, work, "-c", use)
        changes = overlay.changes()
    assert answer.split() == ["b'start'", str(errno.EBADF)]
    assert changes is not None
    assert changes.opened_read_only == [str(work / "huge.bin")]


def test_the_disk_is_not_filled(tmp_path: Path) -> None:
    write = "import os; file = os.open('much.bin', os.O_CREAT | os.O_WRONLY);"
    write += "os.write(file, b'x' * 2**20); os.fsync(file)"
    with FileOverlay(tmp_path / "overlay", working=[tmp_path], written=[]) as overlay:
        _python(overlay, tmp_path, "-c", write)
        overlay.empty_the_largest()
        read = "print(set(open('much.bin', 'rb').read()), os.path.getsize('much.bin'))"
        assert _python(overlay, tmp_path, "-c", f"import os; {read}").split() == ["{0}", str(2**20)]
        changes = overlay.changes()
    assert changes is not None
    assert changes.not_kept_bytes == 2**20


def test_the_report_names_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    report = analyse(training(), job())
    changes = FileChanges(
        written=7, written_bytes=2**20, first_written=[f"/w/{number}" for number in range(7)],
        deleted=1, first_deleted=["/w/old"], not_kept_bytes=2**30, opened_read_only=["/w/huge"],
        guarded=True,
    )  # fmt: skip
    print_report(report.model_copy(update={"files": changes}), details=True)
    out = " ".join(capsys.readouterr().out.split())
    assert "written 7 files (1.00 MiB): /w/0 /w/1 /w/2 /w/3 /w/4 and 2 more" in out
    assert "deleted 1 file: /w/old" in out
    assert "Warning: 1.00 GiB of what it wrote was not kept" in out
    assert "Warning: /w/huge was opened for reading alone" in out
    unguarded = changes.model_copy(update={"guarded": False})
    print_report(report.model_copy(update={"files": unguarded}), details=True)
    out = capsys.readouterr().out
    assert "Warning: this machine has no seccomp filters" in out
    assert "Your files are as they were" not in out

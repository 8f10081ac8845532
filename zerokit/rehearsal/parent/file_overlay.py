"""Protects the user's files from a rehearsed script.

What the script writes, renames and deletes goes to an overlay that is removed at the end
(native/files/view.h). Temporary folders are really written to, except the working folder.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import struct
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerokit.files import write_file
from zerokit.rehearsal.call_sites import PACKAGE
from zerokit.rehearsal.native.build import built_files_library
from zerokit.rehearsal.report.report import FileChanges

_ORIGIN = ".zerokit-origin"
_SHARED_BYTES = 4096
_SHARED = struct.Struct("16xq")
"""`Shared` in native/files/view.cpp: when the rehearsal began."""
_GUARD_FLAG = 4  # where native/files/view.cpp sets the flag that the guard is in place
_MOST_LISTED = 10
_CHECK_SECONDS = 0.2
_PUNCH_HOLE_AND_KEEP_SIZE = 3  # fallocate(2)
_CACHE_FOLDER = "__pycache__"


class FileOverlay:
    """The overlay of one rehearsal, shared by its ranks; the context manager removes it at the end.

    When half of the free disk space is used, the largest files of the overlay are emptied: they keep their
    size and read as zeros.

    Args:
        folder: an empty place for it, in a temporary folder.
        working: the folders that the script works in, which are always protected.
        written: folders for what the rehearsal itself writes.

    Raises:
        LaunchError: as :func:`built_files_library`.
    """

    def __init__(self, folder: Path, working: Sequence[Path], written: Sequence[Path]) -> None:
        self._root = folder.resolve() / "files"
        self._root.mkdir(parents=True)
        (self._root / _ORIGIN).symlink_to("/")
        self._state = self._root.with_name("files.shared")
        write_file(self._state, _SHARED.pack(int(time.time())).ljust(_SHARED_BYTES, b"\0"))
        temporary = {Path(tempfile.gettempdir()).resolve(), Path("/dev/shm")}  # noqa: S108  shared memory
        real = {*temporary, self._root.parent, *(path.resolve() for path in written)}
        kept = {path.resolve() for path in working} - temporary
        library = self._root.with_name("library.so")  # ld.so splits its list at spaces and colons
        library.symlink_to(built_files_library())
        # Else each rehearsal would compile all of torch again, and zerokit, which may lie elsewhere.
        libraries = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
        compiled = {Path(folder).resolve() for folder in (*libraries, PACKAGE)}
        # `is_real` of native/files/view.cpp reads these marks. "+": files of the folder are really written.
        # "-": they go to the overlay. "*": only files in a __pycache__ are really written. The longest path
        # decides. Files of all other folders go to the overlay.
        kinds = {"+": real, "-": kept, "*": compiled}
        zones = [f"{kind}{path}" for kind, paths in kinds.items() for path in paths]
        self.environment = {
            "LD_PRELOAD": ":".join([str(library), *filter(None, [os.environ.get("LD_PRELOAD")])]),
            "ZEROKIT_FILES": "\n".join([str(self._root), *zones]),
        }
        """Environment variables with which a process and its children see the overlay."""
        self._not_kept = 0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._keep_room, daemon=True)

    def __enter__(self) -> FileOverlay:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watcher.join()
        shutil.rmtree(self._root.parent, ignore_errors=True)

    def _keep_room(self) -> None:
        least = shutil.disk_usage(self._root).free // 2
        while not self._ended.wait(_CHECK_SECONDS):
            if shutil.disk_usage(self._root).free < least:
                self.empty_the_largest()

    def empty_the_largest(self) -> None:
        """Empty the largest file of the overlay."""
        files = (path for path in _files_of(self._root) if path.name != _ORIGIN)
        found = [(os.lstat(path).st_blocks * 512, path) for path in files]
        size, path = max(found, default=(0, None))
        if path is None or not size:
            return
        self._not_kept += size
        descriptor = os.open(path, os.O_WRONLY)
        try:
            # From its start to the end it will ever have.
            length = ctypes.c_int64(max(os.fstat(descriptor).st_size, 1))
            ctypes.CDLL(None).fallocate(descriptor, _PUNCH_HOLE_AND_KEEP_SIZE, ctypes.c_int64(0), length)
        finally:
            os.close(descriptor)

    def changes(self) -> FileChanges | None:
        """What the script would have changed on disk; None if nothing."""
        written: dict[str, int] = {}
        deleted: list[str] = []
        self._compare(self._root, written, deleted)
        notes = self._root.with_name("files.notes")
        read_only = notes.read_text(errors="replace").splitlines() if notes.exists() else []
        guarded = self._state.read_bytes()[_GUARD_FLAG] != 0
        if guarded and not written and not deleted and not read_only:
            return None
        return FileChanges(
            written=len(written),
            written_bytes=sum(written.values()),
            first_written=sorted(written, key=lambda path: (not os.path.lexists(path), path))[:_MOST_LISTED],
            deleted=len(deleted),
            first_deleted=sorted(deleted)[:_MOST_LISTED],
            not_kept_bytes=self._not_kept,
            opened_read_only=sorted({line.removeprefix("read only ") for line in read_only}),
            guarded=guarded,
        )

    def _compare(self, folder: Path, written: dict[str, int], deleted: list[str]) -> None:
        """Collect files that the overlay has in `folder`, and files of the disk that are deleted there."""
        path = Path("/", folder.relative_to(self._root))
        origin = folder / _ORIGIN
        names = {entry.name for entry in os.scandir(folder)}
        if not origin.is_symlink():
            on_disk = {entry.name for entry in os.scandir(path)} if path.is_dir() else set()
            for name in on_disk - names - {_CACHE_FOLDER}:
                deleted += map(str, _files_of(path / name))
        elif str(origin.readlink()) != str(path):
            for file in _files_of(origin.readlink()):
                written[str(path / file.relative_to(origin.readlink()))] = file.lstat().st_size
        for name in sorted(names - {_ORIGIN, _CACHE_FOLDER}):
            entry = folder / name
            mode, size = entry.lstat().st_mode, entry.lstat().st_size
            if stat.S_ISDIR(mode):
                self._compare(entry, written, deleted)
            elif stat.S_ISREG(mode) and mode & stat.S_ISVTX:  # stands for a file of the disk
                stands_for = Path(os.fsdecode(entry.read_bytes()))
                if stands_for != path / name:
                    written[str(path / name)] = stands_for.lstat().st_size
            elif not (stat.S_ISLNK(mode) and _same_link(entry, path / name)):
                written[str(path / name)] = size


def _same_link(one: Path, other: Path) -> bool:
    return other.is_symlink() and one.readlink() == other.readlink()


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            yield Path(folder, name)

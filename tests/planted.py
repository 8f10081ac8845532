"""Links and second names of files, planted at every name that a command writes to.

The names are found by watching the command: what Python's audit events say it makes, renames, removes or
writes to, and what is new in the end. Names that two runs do not share have something random in them.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zerokit.staging import MARK

SECRET = "what nobody but its owner may read"
KINDS = ("a link to a folder", "a link to a file", "a link to nothing", "a link to /proc", "a second name")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_EVENTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.utime", "shutil.rmtree"), (0,)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    "os.rename": (0, 1),
}
"""Event -> which of its arguments are paths that change; the last one is the folder that these begin at."""
_EVENTS_OF_PATHS = {"os.truncate": (0,), "shutil.copyfile": (1,), "shutil.copytree": (1,)}
"""The same, without such a folder."""

Paths = tuple[str, ...]
_seen: list[Paths] | None = None
"""What happened while it is watched; None while nobody watches."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes) and flags & _WRITING:
            _seen.append((_absolute(path),))
    elif event in _EVENTS_OF_PATHS or (event in _EVENTS and arguments[-1] in (-1, None)):
        paths = [arguments[number] for number in (_EVENTS | _EVENTS_OF_PATHS)[event]]
        if not any(isinstance(path, int) for path in paths):
            _seen.append(tuple(map(_absolute, paths)))


def _absolute(path: str | bytes | os.PathLike[str]) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - that follows no link


@contextmanager
def watched() -> Iterator[list[Paths]]:
    """The paths that this process changes in the block: one at a time, or the two of a rename."""
    global _seen
    if not hasattr(sys, "_zerokit_tests_watch"):
        sys.addaudithook(_hook)
        sys._zerokit_tests_watch = True  # type: ignore[attr-defined]
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None


def names_below(place: Path, seen: list[Paths], before: set[Path]) -> set[str]:
    """The names in `place` that were changed, and those of what is new there: C++ and Rust write unseen.

    Args:
        place: a folder.
        seen: of :func:`watched`.
        before: what was there.
    """
    root = f"{place.absolute()}{os.sep}"
    names = {path for paths in seen for path in paths if path.startswith(root)}
    names |= {str(path.absolute()) for path in set(place.rglob("*")) - before}
    for source, target in reversed([paths for paths in seen if len(paths) == 2]):
        moved = {name for name in names if name.startswith(f"{target}{os.sep}")}
        names |= {source + name.removeprefix(target) for name in moved}
    return {name.removeprefix(root) for name in names}


class Place:
    """A folder in which a command runs, and beside it what the command may not change, with links to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "place"
        self._outside = folder / "outside"
        self._planted: set[Path] = set()

    def make(self, template: Path) -> None:
        """Make both anew, the first as a copy."""
        for path in (self.path, self._outside):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, self.path, symlinks=True)
        (self._outside / "home/docs").mkdir(parents=True)
        for name in ("home/thesis.tex", "home/docs/a", "file"):
            (self._outside / name).write_text(SECRET)
        self._planted = set()

    def plant(self, names: set[str], first: int, marked: set[str]) -> None:
        """Plant something at each of some names, in the place of a file that is there.

        Folders that are there stay. Those above a name are made, as an interrupted command would leave them.

        Args:
            names: relative to the folder.
            first: the number of the kind that the first name gets; the others follow in turn.
            marked: the folders that the command marks as its own.
        """
        for number, name in enumerate(sorted(names)):
            path = self.path / name
            for above in reversed(Path(name).parents):
                (self.path / above).mkdir(exist_ok=True)
                if str(above) in marked and str(above / MARK) not in names:
                    (self.path / above / MARK).touch()
            if not _is_folder(path):
                path.unlink(missing_ok=True)
                self._plant(path, KINDS[(first + number) % len(KINDS)])
                self._planted.add(path)

    def _plant(self, path: Path, kind: str) -> None:
        if kind == "a second name":
            own = self._outside / f"second-{len(self._planted)}"
            own.write_text("of two names")
            path.hardlink_to(own)
        else:
            targets = {"folder": "home", "file": "file", "nothing": "nothing", "/proc": "/proc/self/environ"}
            path.symlink_to(self._outside / targets[kind.split()[-1]])

    def outside(self) -> dict[str, tuple[Any, ...]]:
        """All that may not change: mode, size, time of change and content of each path."""
        found: dict[str, tuple[Any, ...]] = {}
        for path in (self._outside, *sorted(self._outside.rglob("*"))):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
        return found

    def leaks(self) -> list[Path]:
        """The files of the folder that have in them what is outside, or what a process knows."""
        files = [path for path in self.path.rglob("*") if path.is_file() and not path.is_symlink()]
        return [path for path in files if SECRET.encode() in path.read_bytes()]

    def give_way(self, error: str) -> bool:
        """Take away what an error names; a folder that has lost its mark to a link gets it back.

        Returns:
            whether it names anything that was planted.
        """
        marks = {path for path in self._planted if path.name == MARK and path.parent.name in error}
        for path in marks:
            path.unlink()
            path.touch()
        named = set() if marks else {one for path in self._planted for one in self._up(path) if one.name in error}
        for path in named:
            if _is_folder(path):
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        gone = {path for path in self._planted if not os.path.lexists(path)}
        self._planted -= marks | gone
        return bool(marks | gone)

    def _up(self, path: Path) -> Iterator[Path]:
        """A path, and the folders above it but for those that a person has named."""
        yield path
        yield from (above for above in path.parents if self.path in above.parent.parents)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()

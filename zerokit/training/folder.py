"""The output folder of a run: only one run writes into it, and files of an earlier run are not lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from zerokit import console, staging
from zerokit.checkpoint.unfinished import UNFINISHED, move_to_unfinished, remove_all_unfinished
from zerokit.choices import OUTPUT_DIR
from zerokit.distributed.group import RankGroup
from zerokit.errors import RecipeError, ZerokitError, collect_errors, raise_together
from zerokit.recipe import LoadedRecipe
from zerokit.tables import table_of
from zerokit.training.identity import read_identity
from zerokit.training.report import METRICS_FILE, REPORT_FILE, SAMPLES_FILE
from zerokit.training.trackers import tracker_files, trackers
from zerokit.units import quantity

LOCK_FILE = "run.lock"
EARLIER = "earlier"
"""Folder for checkpoints of replaced runs, in a folder for each run."""

RESHARDED = ".divided"
"""Folder in a run for a checkpoint resharded for another number of ranks, until the run has loaded it."""
SAVING, REPLACED = ".saving", ".replaced"
"""Folders of the whole new model, and of the one that it replaces."""
CURRENT = ".model"
"""While one model replaces the other, a link to the folder of the valid one."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint-N folders of a run, in order of N."""
    return [path for path in _numbered(folder) if path.is_dir()]


def dangling_checkpoints(folder: Path) -> list[Path]:
    """The checkpoint-N that are links to missing folders, in order of N."""
    return [path for path in _numbered(folder) if path.is_symlink() and not path.exists()]


def _numbered(folder: Path) -> list[Path]:
    named = (path for path in folder.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name))
    return sorted(named, key=checkpoint_number)


def checkpoint_number(checkpoint: Path) -> int:
    """The N of a checkpoint-N."""
    return int(checkpoint.name.partition("-")[2])


def is_current_link(link: Path) -> bool:
    """Whether a path is a link that a save makes. A link to anything else is not zerokit's."""
    return link.is_symlink() and str(link.readlink()) in (SAVING, REPLACED)


def can_link_current(folder: Path) -> bool:
    """Whether :data:`CURRENT` does not exist in a folder, or is the link of an earlier save."""
    return not os.path.lexists(folder / CURRENT) or is_current_link(folder / CURRENT)


def remove_old(folder: Path, limit: int | None, *, last: Path, best: str | None) -> None:
    """Remove the oldest checkpoints until `limit` (``save_total_limit``) are left; None or 0 keeps all.

    Args:
        last: the checkpoint that has just been saved; it stays.
        best: the best checkpoint; it stays.
    """
    if limit is not None and limit > 0:
        found = checkpoints(folder)
        stay = {last.name, best and Path(best).name}
        removable = [path for path in found if path.name not in stay]
        for path in removable[: max(0, len(found) - limit)]:
            with suppress(OSError, ZerokitError):  # one that stays is tried again at the next
                move_to_unfinished(path)
    remove_all_unfinished(folder)


def check_earlier(loaded: LoadedRecipe, *, force: bool) -> None:
    """Check, before ranks start, that this run would not replace files of an earlier one. Ranks check a
    resumed run.

    Raises:
        RecipeError: it would, or something is in the way of the run's files.
        ZerokitError: a link, or a file that zerokit did not make, has a name that zerokit needs.
    """
    training = loaded.recipe.training
    where = loaded.where("training", "output_dir")
    output = OutputFolder(Path(training.get("output_dir") or OUTPUT_DIR), where, force, None)
    output._check_names(loaded)
    if not training.get("resume_from_checkpoint"):
        output._check_earlier()


@dataclass(frozen=True)
class OutputFolder:
    path: Path
    where: str
    """The place of its name in the recipe."""
    force: bool
    """Whether files of an earlier run may be set aside and replaced."""
    resume: Path | None
    """The checkpoint that the run continues from."""

    def check(self, loaded: LoadedRecipe) -> None:
        """Check before training whether the model can be saved there.

        Raises:
            RecipeError: it cannot, or files of an earlier run would be lost.
            ZerokitError: a link, or a file that zerokit did not make, has a name that zerokit needs.
        """
        model = loaded.recipe.model.path
        if model is not None and self.path.exists() and Path(model).resolve() == self.path.resolve():
            raise RecipeError(
                f"'{self.path}' is the model to start from", where=self.where, hint="Save to another folder"
            )
        self._check_names(loaded)
        self._check_earlier()
        # A link to nothing is in the way, too.
        existing = next(one for one in (self.path, *self.path.absolute().parents) if os.path.lexists(one))
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            hint = "Name a folder that can be made or written to"
            raise RecipeError(f"cannot write into '{self.path}'", where=self.where, hint=hint)
        check_output_names(self.path, self.where)

    def _check_names(self, loaded: LoadedRecipe) -> None:
        """Check that files at the names that zerokit needs are zerokit's own."""
        errors: list[ZerokitError] = []
        for name in (SAVING, REPLACED, UNFINISHED, RESHARDED):
            with collect_errors(errors):
                staging.check_staging(self.path / name)
        written = [self.path / name for name in tracker_files(trackers(loaded))]
        # TensorBoard makes new files only, so its folder may be a link to one that several runs share.
        written = [path for path in written if not (path.is_symlink() and path.is_dir())]
        for path in (self.path / LOCK_FILE, self.path / EARLIER, *written):
            with collect_errors(errors):
                staging.check_own_name(path)
        if not can_link_current(self.path):
            problem = "was not made by zerokit, which needs this name for a link"
            hint = "Move it away, or name another output folder"
            errors.append(ZerokitError(problem, where=self.path / CURRENT, hint=hint))
        raise_together(errors)

    @contextmanager
    def locked(self, group: RankGroup, run_id: str) -> Iterator[None]:
        """Lock the folder against other runs (RecipeError), and move files of an earlier run away."""
        with ExitStack() as held:
            if group.policy.writes_files:
                group.together(lambda: self._take(held, run_id) if group.ranks.is_main else None)
                self._note_unseen(group)
            yield

    def _note_unseen(self, group: RankGroup) -> None:
        """Warn if a machine does not see the folder. File servers may show it late."""
        found = group.unseeing_host(lambda: not group.ranks.is_node_main or (self.path / LOCK_FILE).exists())
        if found is not None and group.ranks.is_main:
            console.note(
                f"zerokit: warning: {found} does not see {self.path}: no checkpoint is saved unless "
                "training.output_dir is on a disk that all machines share"
            )

    def _take(self, held: ExitStack, run_id: str) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held.enter_context(_lock(self.path, self.where, run_id))
        except OSError as error:
            raise RecipeError(
                f"cannot write into '{self.path}': {error.strerror or error}",
                where=self.where,
                hint="Name a folder that can be made or written to",
            ) from None
        self._check_earlier()
        remove_all_unfinished(self.path)
        resharded = self.path / RESHARDED  # of a run that was ended as it resumed
        if self.resume is None or not self.resume.is_relative_to(resharded):
            with suppress(OSError):
                staging.remove(resharded)
        self._set_aside(run_id)

    def _check_earlier(self) -> None:
        try:
            check_output_names(self.path, self.where)
            left, has_model = checkpoints(self.path), (self.path / REPORT_FILE).exists()
        except (OSError, ValueError) as error:  # a name that is too long, a folder that may not be read
            raise RecipeError(
                f"cannot read '{self.path}': {getattr(error, 'strerror', None) or error}",
                where=self.where,
                hint="Name another folder",
            ) from None
        if self.force or self._is_resumed():
            return
        if has_model:
            raise RecipeError(
                f"'{self.path}' has the model of an earlier run",
                where=self.where,
                hint="Name another folder, or add --force to replace it",
            )
        if left:
            raise RecipeError(
                f"'{self.path}' has {left[-1].name} of a run that did not end",
                where=self.where,
                hint="Continue it with --resume auto, name another folder, or add --force to set it aside",
            )

    def _is_resumed(self) -> bool:
        """Whether the resumed run is the one in the folder."""
        if self.resume is None:
            return False
        return self.resume.resolve().parent == self.path.resolve() or self._resumed() is not None

    def _resumed(self) -> Path | None:
        """The checkpoint-N of the folder that the run resumes from, which may be a link."""
        if self.resume is None:
            return None
        real = self.resume.resolve()
        return next((path for path in checkpoints(self.path) if path.resolve() == real), None)

    def _set_aside(self, run_id: str) -> None:
        """Move checkpoints and metrics of an earlier run away; its model stays until it is replaced.

        A resumed run moves only checkpoints after its own, so that its own is the last one in the folder.
        """
        left = checkpoints(self.path)
        if self.resume is not None and self._is_resumed():
            start = self._resumed()
            later = left[left.index(start) + 1 :] if start is not None else []
            self._move(later, (), run_id, f"behind {self.resume.name}")
        elif left or (self.path / REPORT_FILE).exists():
            identity = read_identity(left[-1]) if left else None
            name = identity.run_id if identity is not None else datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            self._move(left, (METRICS_FILE, SAMPLES_FILE), name, "of an earlier run")

    def _move(self, left: list[Path], files: Sequence[str], name: str, which: str) -> None:
        aside = self.path / EARLIER / name
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = self.path / EARLIER / f"{name}-{number}"
        moved = [path for path in (*left, *(self.path / file for file in files)) if os.path.lexists(path)]
        if moved:
            staging.make_folder(self.path / EARLIER)
            aside.mkdir()
        for path in moved:
            path.rename(aside / path.name)
        if left:
            console.note(f"{quantity(len(left), 'checkpoint')} {which} set aside in {aside}")


@dataclass(frozen=True)
class _Owner:
    """The owner of a folder's lock."""

    host: str
    pid: int
    run_id: str
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (run {self.run_id}, since {self.started})"


@contextmanager
def _lock(folder: Path, where: str, run_id: str) -> Iterator[None]:
    """Hold the folder's lock until this process ends. RecipeError if another process holds it."""
    file = folder / LOCK_FILE
    opened = _open_lock(file, folder, where)
    try:
        opened.truncate(0)
        owner = _Owner(socket.gethostname(), os.getpid(), run_id, datetime.now(UTC).isoformat(timespec="seconds"))
        json.dump(asdict(owner), opened)
        opened.flush()
        yield
    finally:
        with suppress(OSError):  # its folder may be gone
            file.unlink()
        opened.close()


def _open_lock(file: Path, folder: Path, where: str) -> IO[str]:
    """Open and lock the lock file.

    Raises:
        RecipeError: another process holds it.
        ZerokitError: it is a link, or a file with other names.
    """
    while True:
        opened = staging.open_private_file(file)
        owner = _read(opened)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem, hint = f"'{folder}' is in use by {owner or 'another run'}", "Wait for it"
        except OSError:  # a file system without locks: the process that it names must do
            if owner is None or not _may_run(owner):
                return opened
            problem = f"'{folder}' is in use by {owner}, unless that has ended"
            hint = f"Remove {file} if it has"
        else:
            # Whoever held it before has removed it: another run may have made it anew.
            if _is_same(file, opened):
                return opened
            opened.close()
            continue
        opened.close()
        raise RecipeError(problem, where=where, hint=f"{hint}, or name another folder")


def _read(opened: IO[str]) -> _Owner | None:
    opened.seek(0)
    try:
        return _Owner(**json.load(opened))
    except (ValueError, TypeError):  # its owner is writing it, or was ended while it did
        return None


def _may_run(owner: _Owner) -> bool:
    return owner.host != socket.gethostname() or Path("/proc", str(owner.pid)).exists()


def _is_same(file: Path, opened: IO[str]) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(opened.fileno()))
    except FileNotFoundError:
        return False


_FOLDERS = re.compile(r"checkpoint-\d+|earlier|runs|\.unfinished|\.saving|\.replaced")
_FILES: Sequence[str] = table_of(__file__)["files"]
"""Patterns of names. A run removes what has the name of a file of its model, and all that is below it."""


def check_output_names(folder: Path, where: str) -> None:
    """Refuse an output folder with something in the way of the files that a run writes (RecipeError)."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        needs_folder = _FOLDERS.fullmatch(path.name) is not None
        if not needs_folder and not any(fnmatchcase(path.name, pattern) for pattern in _FILES):
            continue
        hint = "Remove or rename it, or name another folder"
        if not path.exists():
            continue
        if needs_folder and not path.is_dir():
            problem = "is not a folder, and the run makes a folder of that name"
        elif not needs_folder and not path.is_file():
            problem = "is not a regular file, and the run writes a file of that name"
        elif not needs_folder and not path.stat().st_mode & stat.S_IWUSR:
            problem, hint = "is read-only, and the run writes it", "Try chmod u+w, or name another folder"
        else:
            continue
        raise RecipeError(f"'{path}' {problem}", where=where, hint=hint)

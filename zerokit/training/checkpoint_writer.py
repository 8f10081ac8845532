"""Writes checkpoints: each gets its name when it is complete, and a full disk does not end the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from zerokit import console, staging
from zerokit.checkpoint.checksums import checksums, files_of, record_num_files, write_checksums
from zerokit.checkpoint.unfinished import UNFINISHED, remove_all_unfinished, unfinished_path
from zerokit.distributed.group import RankGroup
from zerokit.errors import ZerokitError
from zerokit.patches import Patch, declare, replace
from zerokit.training.folder import SAVING, checkpoints, remove_old
from zerokit.units import format_bytes


class CheckpointWriter:
    """Writes the checkpoints and weights of a run.

    Args:
        limit: most checkpoints to keep, as ``save_total_limit``; None keeps all.
        is_writer: whether this rank writes what ranks share (``TrainingArguments.should_save``).
    """

    def __init__(self, group: RankGroup, output_dir: Path, *, limit: int | None, is_writer: bool) -> None:
        self._group = group
        self._folder, self._limit, self._is_writer = output_dir, limit, is_writer
        self.problems = DiskProblems()
        """What this rank could not write since the current save began."""
        self._checkpoint_bytes = 0
        """Size of the last checkpoint, on the rank that writes; 0 on other ranks."""
        self._best_saved: tuple[Any, Any, Any] = (None, None, None)
        """The best checkpoint according to the trainer state, when the last checkpoint was saved."""

    def begin(self, state: TrainerState) -> None:
        """Remember the best checkpoint of a run that is resumed."""
        self._best_saved = _best(state)

    def save(self, state: TrainerState, write: Callable[[Path], None]) -> None:
        """Save a checkpoint, or report why it cannot be saved; the same on every rank.

        Args:
            state: the trainer's. If the save fails, its best checkpoint is reset to that of the last save.
            write: writes this rank's part into a folder; disk problems go to :attr:`problems`.
        """
        saved = self._folder / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if state.best_global_step == state.global_step and self._group.policy.writes_files:
            state.best_model_checkpoint = str(saved)
        problem = self._write(saved, write)
        if problem is None:
            self._best_saved = _best(state)
        else:  # the Trainer would go back to a removed checkpoint, and ignore those saved later
            state.best_metric, state.best_global_step, state.best_model_checkpoint = self._best_saved
            if self._group.ranks.is_node_main:  # each machine has written, with or without a shared disk
                remove_all_unfinished(self._folder)
        if not self._is_writer:
            return
        if problem is None:
            self._checkpoint_bytes = folder_bytes(saved)
            remove_old(self._folder, self._limit, last=saved, best=state.best_model_checkpoint)
        else:
            left = checkpoints(self._folder)
            remains = f"{left[-1].name} stays" if left else "there is none yet"
            console.note(f"zerokit: {saved} cannot be saved: {problem}. The run goes on; {remains}")

    def end(self, state: TrainerState) -> None:
        """With a limit of 1, keep the best checkpoint only: the last one is no longer needed."""
        best = state.best_model_checkpoint
        if self._limit == 1 and best is not None and self._is_writer:
            remove_old(self._folder, self._limit, last=Path(best), best=best)

    def _write(self, saved: Path, write: Callable[[Path], None]) -> str | None:
        """Returns why the checkpoint is incomplete, the same on every rank; None if it is complete."""
        self.problems.clear()
        # No rank writes before each has a folder to write to: there may be a link in its place.
        if (problem := self._group.first(self._make_folder())) is not None:
            return problem
        with self.problems.collect():  # from here on, an error must not make another rank wait
            write(unfinished_path(saved))
        problem = self._group.first(next(iter(self.problems), None))
        if problem is not None or not self._group.policy.writes_files:
            return problem
        return publish(self._group, unfinished_path(saved), saved)

    def _make_folder(self) -> str | None:
        """Make the folder for unfinished checkpoints, once per machine; returns why it cannot be made."""
        if problem := disk_space_problem(self._folder, self._checkpoint_bytes):
            return problem
        if not self._group.policy.writes_files or not (self._is_writer or self._group.ranks.is_node_main):
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished = staging.make_staging(self._folder / UNFINISHED)
            if self._is_writer:
                staging.clear(unfinished)
        except (OSError, ZerokitError) as error:
            return str(error) if isinstance(error, ZerokitError) else error.strerror or str(error)
        return None

    def write_weights(self, folder: Path, write: Callable[[str], None]) -> None:
        """Write weights to `folder`; if they cannot be written, :attr:`problems` has the reason."""
        num_problems = len(self.problems)
        with self.problems.collect():
            if folder.name == SAVING and self._is_writer:
                folder.parent.mkdir(parents=True, exist_ok=True)
                staging.make_staging(folder)
            write(str(folder))
            # safetensors makes its files readable by the owner only.
            for file in folder.glob("*.safetensors") if self._is_writer else ():
                file.chmod(folder.stat().st_mode & 0o666)
        if len(self.problems) > num_problems and self._is_writer:
            with suppress(OSError):
                staging.remove(folder)


def _best(state: TrainerState) -> tuple[Any, Any, Any]:
    return state.best_metric, state.best_global_step, state.best_model_checkpoint


def publish(group: RankGroup, written: Path, saved: Path) -> str | None:
    """Seal a checkpoint and rename it; returns why it is incomplete, or None, on every rank."""
    problem = seal(group, written)
    if problem is None and group.ranks.is_main:
        try:
            if saved.is_symlink():  # a dangling link or a link to a file; a link to a folder is a checkpoint
                saved.unlink()
            written.rename(saved)
            _sync_folders([written.parent, saved.parent])
        except OSError as error:
            problem = _why(error)
    return group.broadcast_object(problem)


def seal(group: RankGroup, folder: Path) -> str | None:
    """Flush a checkpoint and write ``SHA256SUMS``; returns why it is incomplete, or None, on every rank."""
    names = group.broadcast_object(files_of(folder) if group.ranks.is_main else [])
    if blind := group.unseeing_host(lambda: all((folder / name).exists() for name in names)):
        return f"{blind} does not see it: training.output_dir must be on a disk that all machines share"
    parts = group.gather_objects(_synced_sums(folder, group.share(names)))
    problem = next((part for part in parts if isinstance(part, str)), None if names else "it was removed")
    if problem is not None:
        return problem
    if group.ranks.is_main:
        whole = {name: digest for part in parts if not isinstance(part, str) for name, digest in part.items()}
        problem = _write_sums(folder, whole)
    return group.broadcast_object(problem)


def _write_sums(folder: Path, sums: dict[str, str]) -> str | None:
    """Write ``SHA256SUMS`` after all of its files are on disk; returns why it cannot be written."""
    try:
        sums |= record_num_files(folder, len(sums))
        _sync_folders([*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent])
        write_checksums(folder, sums)
        _sync_folders([folder])
    except (OSError, ZerokitError) as error:
        return _why(error)
    return None


def _sync_folders(folders: list[Path]) -> None:
    for folder in folders:
        opened = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system supports it
                os.fsync(opened)
        finally:
            os.close(opened)


def _synced_sums(folder: Path, names: list[str]) -> dict[str, str] | str:
    """Flush files to disk and return their SHA-256, or why that failed."""
    try:
        for name in names:
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())  # a full file server reports its error here
        return checksums(folder, names)
    except (OSError, ZerokitError) as error:
        return _why(error)


def _why(error: OSError | ZerokitError) -> str:
    return str(getattr(error, "strerror", None) or error)


_PURPOSE = "outlive a full disk"
_WRITES = declare(
    "deepspeed.runtime.checkpoint_engine.checkpoint_engine:CheckpointEngine", "save", "makedirs", purpose=_PURPOSE
)
_SAVES = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "save_checkpoint", _PURPOSE)
_COPIES = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "_copy_recovery_script", _PURPOSE)
_OF_TORCH = ("PytorchStreamWriter", "inline_container", "iostream error", "Parent directory")
"""Text in RuntimeErrors of torch.save() that are about a file."""


def disk_problem(error: Exception) -> str | None:
    """Why a file could not be written; None for an error that is not about a file."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if type(error) is ZerokitError:  # raised by zerokit.files and zerokit.staging
        return f"{error.where}: {error.message}"
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_TORCH):
        return "torch cannot write its file, as on a full disk"  # without a reason
    return str(error).rpartition("I/O error: ")[2] if isinstance(error, SafetensorError) else None


def disk_space_problem(folder: Path, num_bytes: int) -> str | None:
    """Why `num_bytes` cannot be written into `folder`; None if they can, or the space is unknown."""
    with suppress(OSError):
        disk = shutil.disk_usage(folder)
        if disk.total and disk.free < num_bytes:  # some file systems of a program's own say 0 of 0
            free = format_bytes(disk.free)
            return f"it takes about {format_bytes(num_bytes)}, and {free} are free on that disk"
    return None


def folder_bytes(folder: Path) -> int:
    """Total size of the files in a folder."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


class DiskProblems(list[str]):
    """Reasons why files could not be written on this rank, in order."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """A context that collects disk errors of its block instead of raising them."""
        try:
            yield
        except Exception as error:
            problem = disk_problem(error)
            if problem is None:
                raise
            self.append(problem)

    def collect_from(self, engine: Any) -> None:
        """Make DeepSpeed's engine continue a save after a disk error: other ranks would wait in its barriers.

        The caller writes the file ``latest``, which the engine would write between two barriers.
        """
        for patch in _WRITES:
            replace(engine.checkpoint_engine, patch.name, self._collecting)
        replace(engine, _COPIES.name, self._collecting)  # by rank 0, before the last barrier
        replace(engine, _SAVES.name, lambda save: partial(save, save_latest=False))

    def _collecting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = None
            with self.collect():
                result = function(*args, **kwargs)
            return result  # noqa: RET504  # None after a disk error

        return call

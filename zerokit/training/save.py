"""Saves the trained model: written completely to a staging folder, checked, then published in one step."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.source import check_weights
from zerokit.distributed.group import RankGroup
from zerokit.distributed.run_policy import RunPolicy
from zerokit.documents import read_document
from zerokit.errors import CheckpointError, DocumentError, ModelError, RunError
from zerokit.staging import MARK, is_staging, make_staging, remove, remove_empty
from zerokit.training.folder import (
    CURRENT,
    REPLACED,
    SAVING,
    OutputFolder,
    can_link_current,
    checkpoints,
    is_current_link,
)
from zerokit.training.report import REPORT_FILE, RunReport

if TYPE_CHECKING:
    from zerokit.training.checkpoint_writer import DiskProblems
    from zerokit.training.trainer import ZeroTrainer

_NEW_LINK = f"{MARK}-link"
"""Temporary name in ``.replaced`` of a new link."""


def publish_model(trainer: ZeroTrainer, output: OutputFolder, group: RankGroup, report: RunReport) -> list[Path]:
    """Save weights (safetensors), config, generation config, tokenizer and ``run.json`` into `output`.

    All ranks take part, because under ZeRO-3 each holds a part of the weights. Whatever ends this process,
    the folder has its earlier model, or the new one with all files.

    Returns:
        the files, on rank 0; nothing on other ranks.

    Raises:
        CheckpointError: the saved weights are missing or empty.
        RunError: the folder cannot be written.
    """
    writer, staging = trainer.checkpoints, output.path / SAVING
    writer.problems.clear()
    if group.ranks.is_main:
        with writer.problems.collect():
            settle(output.path)
        _remove(staging)
    # The other ranks save with rank 0, or not at all.
    writer.problems[:] = group.broadcast_object(list(writer.problems))
    if not writer.problems:
        trainer.save_model(str(staging))
    return group.together(
        lambda: _publish_saved(output.path, writer.problems, report, group.policy) if group.ranks.is_main else []
    )


def _publish_saved(output_dir: Path, problems: DiskProblems, report: RunReport, policy: RunPolicy) -> list[Path]:
    """Publish the saved weights, or raise RunError with `problems`, what could not be written."""
    if not problems:
        with problems.collect():
            return _publish(make_staging(output_dir / SAVING), output_dir, report, policy)
    left = checkpoints(output_dir)
    kept = (
        f"{left[-1]} is left: make room, and go on with --resume auto" if left else "No checkpoint is left. Make room"
    )
    why = "; ".join(problems)
    raise RunError(f"the trained model cannot be saved: {why}", where=output_dir, hint=kept)


def _publish(staging: Path, output_dir: Path, report: RunReport, policy: RunPolicy) -> list[Path]:
    # The Trainer's pickle of its arguments: run.json has the same content, and is safe to load.
    (staging / "training_args.bin").unlink(missing_ok=True)
    if policy.writes_files:
        try:
            check_weights(staging, where=str(staging))
        except ModelError as error:
            raise CheckpointError(error.message, where=error.where, hint=error.hint) from None
    new = {REPORT_FILE, *(file.name for file in staging.iterdir() if file.name != MARK)}
    replace(report, files=sorted(new)).write(staging)
    old = _earlier_files(output_dir) | {name for name in new if os.path.lexists(output_dir / name)}
    try:
        _switch(output_dir, old, new)
    except OSError:
        if is_current_link(output_dir / CURRENT):
            raise
        # A file system without links, or another file has the name of the link. A folder without a config
        # is not taken for a model.
        (output_dir / "config.json").unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name == "config.json"):
            _move(staging / name, output_dir / name)
        for name in old - new:
            (output_dir / name).unlink(missing_ok=True)
    settle(output_dir)
    return [output_dir / name for name in sorted(new)]


def _earlier_files(folder: Path) -> set[str]:
    """Files of an earlier model, such as shards or an adapter that would be loaded with the new one."""
    found = {path.name for pattern in ("model*.safetensors*", "adapter_*") for path in folder.glob(pattern)}
    with suppress(DocumentError, AttributeError, TypeError):  # no report, or one of something else
        report = read_document(folder / REPORT_FILE, folder=folder).data
        found |= {str(name) for name in report.get("files", ())}
    names = {name for name in found if Path(name).name == name and name not in ("", "..")}
    return {name for name in names if os.path.lexists(folder / name)}


def _switch(folder: Path, old: set[str], new: set[str]) -> None:
    """Make the names of a model's files refer to those in ``.saving``, all at the same moment.

    Each name becomes a link through ``.model``, which leads to the old files until it is replaced. OSError if
    the file system has no links, is full, or another file has the name ``.model``.
    """
    current, replaced = folder / CURRENT, folder / REPLACED
    if not can_link_current(folder):
        raise FileExistsError(current)
    _remove(replaced)
    make_staging(replaced)
    for name in old:
        _duplicate(folder / name, replaced / name)
    _set_link(current, REPLACED)
    for name in old | new:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)  # which no link can replace in one step
        _set_link(folder / name, f"{CURRENT}/{name}")
    _set_link(current, SAVING)


def settle(folder: Path) -> None:
    """Replace links by the files that they lead to, also those that a killed run left behind."""
    current = folder / CURRENT
    if is_current_link(current):
        held = folder / current.readlink()
        for file in sorted(held.iterdir()) if is_staging(held) else []:
            if file.name not in (MARK, _NEW_LINK) and (folder / file.name).is_symlink():
                _move(file, folder / file.name)
        for link in folder.iterdir():
            if link.is_symlink() and link.readlink().parent == Path(CURRENT):
                link.unlink()  # of the model that no longer counts
        current.unlink()
    for name in (SAVING, REPLACED):
        _remove(folder / name)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        remove(folder)
        remove_empty(folder)  # a kill may have left one without its mark


def _set_link(link: Path, target: str) -> None:
    """Make or change a link in one step. The folder ``.replaced`` next to it exists."""
    new = link.with_name(REPLACED) / _NEW_LINK
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)


def _duplicate(path: Path, copy: Path) -> None:
    if path.is_symlink():  # the link itself, as it leads from its folder
        copy.symlink_to(path.parent.absolute() / path.readlink())
        return
    if path.is_dir():
        shutil.copytree(path, copy, symlinks=True)
        return
    try:
        copy.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copy2(path, copy)


def _move(path: Path, target: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # additional_chat_templates
        if target.is_symlink():
            target.unlink()
        shutil.rmtree(target, ignore_errors=True)
    path.replace(target)

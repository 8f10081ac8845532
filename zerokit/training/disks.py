"""A disk that is full, or gone, ends no run: what cannot be written is tried again or elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from zerokit.errors import ZerokitError
from zerokit.patches import Patch, declare, replace
from zerokit.units import format_bytes

_PURPOSE = "outlive a full disk"
_WRITES = declare(
    "deepspeed.runtime.checkpoint_engine.checkpoint_engine:CheckpointEngine",
    "save",
    "makedirs",
    purpose=_PURPOSE,
)
_SAVES = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "save_checkpoint", _PURPOSE)
_COPIES = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "_copy_recovery_script", _PURPOSE)
_OF_TORCH = ("PytorchStreamWriter", "inline_container", "iostream error", "Parent directory")
"""Words of the RuntimeErrors of torch.save() that speak of a file."""


def disk_problem(error: Exception) -> str | None:
    """Why a file could not be written; None of an error that does not speak of one."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if type(error) is ZerokitError:  # of zerokit.files and zerokit.staging
        return f"{error.where}: {error.message}"
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_TORCH):
        return "torch cannot write its file, as on a full disk"  # it does not say why
    return str(error).rpartition("I/O error: ")[2] if isinstance(error, SafetensorError) else None


def lacks_room(folder: Path, num_bytes: int) -> str | None:
    """Why so much cannot be written into `folder`; None if there is room, or nobody can tell."""
    with suppress(OSError):
        disk = shutil.disk_usage(folder)
        if disk.total and disk.free < num_bytes:  # some file systems of a program's own say 0 of 0
            free = format_bytes(disk.free)
            return f"it takes about {format_bytes(num_bytes)}, and {free} are free on that disk"
    return None


def bytes_of(folder: Path) -> int:
    """The bytes of all files of a folder, as far as they are there."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


class DiskProblems(list[str]):
    """What could not be written on this rank, in order."""

    def noted(self) -> _Noted:
        """A context: goes on behind its block where an error of that is a disk's."""
        return _Noted(self)

    def note_those_of(self, engine: Any) -> None:
        """Have DeepSpeed's engine save to its end on every rank: the others would wait for one that stopped.

        The file ``latest``, which it writes between two barriers, is left to the caller.
        """
        for patch in _WRITES:
            replace(engine.checkpoint_engine, patch.name, self._noting)
        replace(engine, _COPIES.name, self._noting)  # by rank 0, before the last barrier
        replace(engine, _SAVES.name, lambda save: partial(save, save_latest=False))

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.noted():
                return function(*args, **kwargs)
            return None

        return call


class _Noted:
    def __init__(self, problems: DiskProblems) -> None:
        self._problems = problems

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        problem = disk_problem(error) if isinstance(error, Exception) else None
        if problem is not None:
            self._problems.append(problem)
        return problem is not None

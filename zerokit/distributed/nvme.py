"""Offload to NVMe: a folder, and DeepSpeed's operator `async_io`, which needs libaio.

`zero` is the section `zero_optimization` as DeepSpeed gets it; `where` gives the place of a key of the
ds_config.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from zerokit.distributed.extensions import check_compiler, is_loaded
from zerokit.distributed.group import RankGroup
from zerokit.documents import KeyPath
from zerokit.errors import ConfigError
from zerokit.staging import open_private_file

INSTALL_LIBAIO = "apt install libaio-dev (Debian, Ubuntu), dnf install libaio-devel (Fedora)"
_SECTIONS = ("offload_param", "offload_optimizer")
_SWAPPED = "zero_stage_3"
"""DeepSpeed's name of the folder of its swap files."""


def uses_nvme(zero: Mapping[str, Any]) -> bool:
    """Whether parameters or optimizer states are on NVMe: in stage 3."""
    return bool(_offloaded(zero))


def has_async_io() -> bool:
    """Whether DeepSpeed has its operator `async_io`, or can compile it. LaunchError without a compiler."""
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops.op_builder import AsyncIOBuilder

    builder = AsyncIOBuilder()
    if is_loaded(builder.name) or installed_ops.get(builder.name):
        return True
    check_compiler()
    return bool(builder.is_compatible(verbose=False))


def check_nvme(zero: Mapping[str, Any], where: Callable[[KeyPath], str]) -> None:
    """Refuse offload to NVMe without a writable folder, libaio (ConfigError) or compiler (LaunchError)."""
    for section, offload in _offloaded(zero):
        path, folder = ("zero_optimization", section, "nvme_path"), offload.get("nvme_path")
        if folder is None or folder == "auto":
            raise ConfigError("offload to nvme needs a path", where=where(path), hint="Set nvme_path to a folder")
        if not Path(folder).is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(
                f"'{folder}' is no folder that can be written to",
                where=where(path),
                hint="Make it, or name another one",
            )
        if not has_async_io():
            raise ConfigError(
                "offload to nvme needs libaio and its headers, which are not installed",
                where=where(path[:2]),
                hint=f"Install them: {INSTALL_LIBAIO}; or offload to cpu",
            )


@contextmanager
def locked_swap_folders(group: RankGroup, zero: Mapping[str, Any], where: Callable[[KeyPath], str]) -> Iterator[None]:
    """Lock the swap folders against other runs, by the first rank of each machine.

    DeepSpeed gives the files of all runs the same names. The same error on every rank:

    Raises:
        ConfigError: another run holds one, or it has a link where DeepSpeed writes.
        ZerokitError: a link is in the place of the lock.
    """
    with ExitStack() as locks:
        group.together(lambda: _lock_swap_folders(locks, zero, where) if group.ranks.is_node_main else None)
        yield


def _lock_swap_folders(locks: ExitStack, zero: Mapping[str, Any], where: Callable[[KeyPath], str]) -> None:
    folders = {Path(offload["nvme_path"]).resolve(): section for section, offload in _offloaded(zero)}
    for folder, section in folders.items():
        # By machine, whose ranks are one run's: if several share the folder, each has its own lock.
        lock = folder / f".zerokit-{os.uname().nodename}-{os.getuid()}"
        place = where(("zero_optimization", section, "nvme_path"))
        _check_swap_folder(folder, place)
        try:
            fcntl.flock(locks.enter_context(open_private_file(lock)), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "Give each run on a machine a folder of its own"
            raise ConfigError(f"another run swaps to '{folder}'", where=place, hint=hint) from None
        except OSError:
            continue  # a file system without locks


def _check_swap_folder(folder: Path, where: str) -> None:
    """Refuse links in the folders that DeepSpeed clears and writes: `zero_stage_3/*/rank*`."""
    made = folder / _SWAPPED
    for path in (made, *made.glob("*"), *made.glob("*/rank*")):
        if path.is_symlink():
            raise ConfigError(
                f"'{path}' is a link, and DeepSpeed clears what is there", where=where, hint="Remove the link"
            )


def clear_swap_folder(zero: Mapping[str, Any], rank: int) -> None:
    """Remove optimizer states of an earlier run of this rank; each checkpoint would contain them."""
    offload = dict(_offloaded(zero)).get("offload_optimizer")
    if offload is not None:
        folder = Path(offload["nvme_path"]) / _SWAPPED / "optimizer" / f"rank{rank}"
        shutil.rmtree(folder, ignore_errors=True)


def clear_weights(zero: Mapping[str, Any], rank: int) -> None:
    """Remove this rank's files of weights, which only this run can read."""
    offload = dict(_offloaded(zero)).get("offload_param")
    if offload is not None:
        for folder in (Path(offload["nvme_path"]) / _SWAPPED).glob(f"*params/rank{rank}"):
            shutil.rmtree(folder, ignore_errors=True)


def _offloaded(zero: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    if zero.get("stage") != 3:
        return []
    sections = ((section, zero.get(section)) for section in _SECTIONS)
    return [
        (name, offload)
        for name, offload in sections
        if isinstance(offload, Mapping) and offload.get("device") == "nvme"
    ]

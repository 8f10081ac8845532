"""Checks that untrusted folders contain only regular files, and no links that lead out of the folder.

A model or a checkpoint may come from an archive or a clone. A link in it may lead to a private file of the
user, and a named pipe, a device or a file such as ``/proc/kmsg`` may block forever.
"""

import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zerokit.errors import DocumentError
from zerokit.hub import hub_cache_folder

_KINDS = {
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}
_OF_KERNEL = frozenset(
    [
        *("proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf"),
        *("pstore", "efivarfs", "mqueue", "selinuxfs", "binfmt_misc", "fusectl", "devpts", "rpc_pipefs"),
    ]
)
"""File systems whose files the kernel generates when they are read."""
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""File names in a Hub cache: the SHA-1 or SHA-256 of the content."""


def unreadable_reason(path: Path, folder: Path | None = None) -> str | None:
    """Why a file must not be read, as the end of a sentence; None for a regular file, a folder, or no file.

    Args:
        folder: must contain the file after all links are followed; None if the user named the file. Links of
            a Hub cache may lead from ``snapshots/REVISION`` to ``blobs/HASH`` of the same repository. Links
            of any folder may lead to ``models--*/blobs/HASH`` of the user's own Hub cache:
            ``huggingface-cli download --local-dir`` made such links until huggingface_hub 0.23.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):  # no file, a link to itself, or an impossible name
        found = None
    if found is not None and (kind := _KINDS.get(stat.S_IFMT(found.st_mode))) is not None:
        return f"{kind}, not a regular file"
    if found is not None and stat.S_ISREG(found.st_mode) and file_system(found.st_dev) in _OF_KERNEL:
        return "is made up by the kernel, not a regular file"
    if folder is not None and not _lies_in(path, folder):
        return "leads out of its folder"
    return None


def check_regular(path: Path, folder: Path | None = None) -> None:
    """Refuse a file that must not be read; for the arguments see :func:`unreadable_reason`.

    Raises:
        DocumentError: it is not a regular file, or not in the folder.
    """
    if (reason := unreadable_reason(path, folder)) is not None:
        raise DocumentError(reason, where=path, hint=COPY_HINT if folder is not None else NAME_HINT)


COPY_HINT = "Replace it with a copy of the file"
"""Hint for a file in a folder."""
NAME_HINT = "Name a regular file"
"""Hint for a file that the user named."""


def first_unreadable(folder: Path) -> tuple[Path, str] | None:
    """The first path below a folder that must not be read, and why; None if there is none.

    Raises:
        OSError: a folder cannot be listed.
    """
    for path in _links_and_special(folder):
        if (reason := unreadable_reason(path, folder)) is not None:
            return path, reason
    return None


def _links_and_special(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _links_and_special(Path(entry))
            elif not entry.is_file(follow_symlinks=False):
                yield Path(entry)


def _lies_in(path: Path, folder: Path) -> bool:
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if real.is_relative_to(root):
        return True
    repository = real.parents[1] if len(real.parents) > 1 else real
    if real.parent.name != "blobs" or _BLOB.fullmatch(real.name) is None:
        return False
    if root.is_relative_to(repository / "snapshots"):
        return True
    return repository.name.startswith("models--") and repository.parent == Path(os.path.realpath(hub_cache_folder()))


@cache
def file_system(device: int) -> str:
    """The type of a mounted file system; empty if unknown. Source: proc_pid_mountinfo(5)."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in map(str.split, mounts):
        if number in mount[2:3] and "-" in mount[:-1]:
            return mount[mount.index("-") + 1]
    return ""

"""The SHA-256 of each file of a checkpoint, in ``SHA256SUMS`` beside them: ``sha256sum -c`` reads it too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerokit.documents import check_regular, shown, unreadable_reason
from zerokit.errors import CheckpointError, DocumentError
from zerokit.files import write_file

SUMS_FILE = "SHA256SUMS"


def files_of(folder: Path) -> list[str]:
    """The files of a checkpoint, relative to its folder, in one order everywhere."""
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in files if name != SUMS_FILE)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of some files of `folder`, in hexadecimal.

    Raises:
        CheckpointError: a file cannot be read.
    """
    return {name: _sha256(folder / name) for name in names}


def write_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write ``SHA256SUMS`` into `folder`."""
    write_file(folder / SUMS_FILE, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))


def read_checksums(folder: Path) -> dict[str, str] | None:
    """What ``SHA256SUMS`` of `folder` says; None if there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    file = folder / SUMS_FILE
    try:
        check_regular(file, folder)
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=shown(file), hint=_HINT) from None
    except DocumentError as error:
        raise CheckpointError(error.message, where=shown(file), hint=_HINT) from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def check_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Compare files of `folder` with what they were when they were saved.

    Raises:
        CheckpointError: one is missing, cannot be read, is not in the folder, or has changed.
    """
    for name, digest in sums.items():
        if (reason := unreadable_reason(folder / name, folder)) is not None:
            raise CheckpointError(reason, where=shown(folder / name), hint=_HINT)
        if _sha256(folder / name) != digest:
            raise CheckpointError(
                f"is not what was saved: its SHA-256 is not that of {SUMS_FILE}",
                where=shown(folder / name),
                hint=_HINT,
            )


_HINT = "Take another checkpoint; 'zerokit train' goes on from this one as it is with --no-verify"


def _sha256(file: Path) -> str:
    if not file.is_file():  # a pipe would be waited for
        problem = "is not a regular file" if file.exists() else "is missing"
        raise CheckpointError(problem, where=shown(file), hint=_HINT)
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=shown(file), hint=_HINT) from None

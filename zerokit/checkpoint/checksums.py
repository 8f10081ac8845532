"""The SHA-256 of each file of a checkpoint, in ``SHA256SUMS`` as `sha256sum -c` reads it.

In a checkpoint of `zerokit train`, ``zerokit_run.json`` records the number of saved files. From it zerokit
notices a missing or shortened ``SHA256SUMS``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NoReturn

from zerokit.checkpoint.step_folder import IDENTITY_FILE
from zerokit.documents import MAX_TABLE_BYTES, check_regular, read_bytes, read_document, unreadable_reason
from zerokit.errors import CheckpointError, DocumentError, printable
from zerokit.files import write_file

SUMS_FILE = "SHA256SUMS"
_NUM_FILES = "num_files"
"""A key of ``zerokit_run.json``."""
_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<name>.+)")


def files_of(folder: Path) -> list[str]:
    """The files of a checkpoint relative to its folder, sorted."""
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in files if name != SUMS_FILE)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of some files of `folder`, in hexadecimal. CheckpointError if a file cannot be read."""
    return {name: _sha256(folder / name) for name in names}


def write_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write ``SHA256SUMS`` into `folder`."""
    write_file(folder / SUMS_FILE, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))


def record_num_files(folder: Path, number: int) -> dict[str, str]:
    """Write the number of files with checksums into ``zerokit_run.json``, and return its new checksum.

    Returns an empty dict for a checkpoint without that file.

    Raises:
        ZerokitError: it cannot be read or written.
    """
    file = folder / IDENTITY_FILE
    if not file.is_file():
        return {}
    identity = {**read_document(file).data, _NUM_FILES: number}
    write_file(file, json.dumps(identity, indent=2) + "\n")
    return checksums(folder, [IDENTITY_FILE])


def has_checksums(folder: Path) -> bool:
    """Whether a checkpoint has ``SHA256SUMS`` or was saved with it; `zerokit train` always writes it."""
    return any(os.path.lexists(folder / name) for name in (SUMS_FILE, IDENTITY_FILE))


def read_checksums(folder: Path) -> dict[str, str] | None:
    """Read ``SHA256SUMS`` of `folder`, which may lack files; None if there is none.

    Raises:
        CheckpointError: it cannot be read, a line is malformed, or it names a file twice or outside the
            folder.
    """
    file = folder / SUMS_FILE
    if not os.path.lexists(file):
        return None
    try:
        check_regular(file, folder)
        lines = read_bytes(file, max_bytes=MAX_TABLE_BYTES).decode().split("\n")
    except DocumentError as error:
        raise CheckpointError(error.message, where=error.where, hint=_HINT) from None
    except UnicodeDecodeError:
        raise CheckpointError("is not UTF-8", where=file, hint=_HINT) from None
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{printable(file)}:{number}"
        match = _LINE.fullmatch(line.rstrip("\r"))
        if match is None:
            if line.strip():
                _refuse("is malformed: a line has a SHA-256, two spaces and the name of a file", where)
            continue
        path = PurePosixPath(match["name"])
        if path.is_absolute() or ".." in path.parts:
            _refuse(f"names '{path}', which is outside the checkpoint's folder", where)
        if str(path) in sums:
            _refuse(f"names '{path}' twice", where)
        sums[str(path)] = match["digest"].lower()
    return sums


def complete_checksums(folder: Path) -> dict[str, str] | None:
    """The SHA-256 of all files of a checkpoint; None if it was saved without checksums.

    Files that were added later need no line. Checkpoints of earlier versions of zerokit have no number of
    files, so every file needs a line.

    Raises:
        CheckpointError: see :func:`read_checksums`; or ``SHA256SUMS`` is missing or lacks a file.
    """
    sums = read_checksums(folder)
    if sums is None:
        if not has_checksums(folder):
            return None
        _refuse(f"has lost its {SUMS_FILE}: it cannot be verified", printable(folder))
    saved = _num_saved(folder)
    if saved is not None and len(sums) >= saved:
        return sums
    files = files_of(folder)
    without = next((name for name in files if name not in sums), None)
    if without is not None or saved is not None:
        example = "" if without is None else f", and none for '{without}'"
        problem = f"has lines for {len(sums)} of {saved or len(files)} files{example}"
        _refuse(problem, printable(folder / SUMS_FILE))
    return sums


def _num_saved(folder: Path) -> int | None:
    with suppress(DocumentError, KeyError, TypeError):
        number = read_document(folder / IDENTITY_FILE).data[_NUM_FILES]
        return number if isinstance(number, int) else None
    return None


def check_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Compare files of `folder` with their checksums.

    Raises:
        CheckpointError: a file is missing, unreadable, outside the folder, or changed.
    """
    for name, digest in sums.items():
        if (reason := unreadable_reason(folder / name, folder)) is not None:
            raise CheckpointError(reason, where=folder / name, hint=_HINT)
        if _sha256(folder / name) != digest:
            raise CheckpointError(
                f"has changed since it was saved: its SHA-256 differs from {SUMS_FILE}",
                where=folder / name,
                hint=_HINT,
            )


def _refuse(problem: str, where: str) -> NoReturn:
    raise CheckpointError(problem, where=where, hint=_HINT)


_HINT = "Use another checkpoint; 'zerokit train' resumes from this one unverified with --no-verify"


def _sha256(file: Path) -> str:
    if not file.is_file():  # a pipe would be waited for
        problem = "is not a regular file" if file.exists() else "is missing"
        raise CheckpointError(problem, where=file, hint=_HINT)
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=file, hint=_HINT) from None

"""Reads files and pipes."""

import codecs
import os
import select
import stat
from contextlib import suppress
from os.path import isdir, isfile, lexists
from pathlib import Path

from zerokit.documents.document import Document
from zerokit.documents.json_reader import parse_json
from zerokit.documents.regular_files import COPY_HINT, NAME_HINT, unreadable_reason
from zerokit.documents.yaml_reader import parse_yaml
from zerokit.errors import DocumentError, printable

_JSON = (".json", ".jsonc")
_YAML = (".yaml", ".yml")

MAX_BYTES = 4 << 20
"""Maximum size of a settings file: 100 times the largest known ds_config, 4 times the largest config.json."""
MAX_TABLE_BYTES = 256 << 20
"""Maximum size of a file with an entry per token or weight; the largest known have 40 MiB."""
_PIPE_PATIENCE = 5.0
"""Seconds until a pipe must have a writer."""
_BYTES_PER_ENTRY = 80
"""A file of `MAX_BYTES` may have 52,428 keys and items, which are read within a second."""
_BYTES_PER_YAML_ENTRY = 400
"""PyYAML is eight times slower."""
_MOST_YAML_BYTES = 1 << 20
"""PyYAML needs a second for this much text without entries."""


def read_document(
    path: str | Path, *, lenient: bool = False, max_bytes: int = MAX_BYTES, folder: Path | None = None
) -> Document:
    """Read a file: JSON by the ending ``.json`` or ``.jsonc``, YAML by ``.yaml`` or ``.yml``.

    A pipe, such as ``/dev/stdin`` or ``<(...)``, is read as JSON if its text begins with a bracket.

    Args:
        lenient: accept the JSON that DeepSpeed accepts (:func:`zerokit.documents.parse_json`), as always for
            ``.jsonc``.
        max_bytes: refuse larger files unread.
        folder: see :func:`read_bytes`.

    Raises:
        DocumentError: as :func:`read_bytes`, or not UTF-8, too large, not JSON or YAML, or a duplicate key.
    """
    file = Path(path)
    name = printable(path)
    ending = file.suffix.lower()
    known = ending in (*_JSON, *_YAML)
    if not known and lexists(file) and not isdir(file) and not _is_pipe(file):  # noqa: PTH112
        raise DocumentError(
            f"cannot tell the format from the ending '{file.suffix}'",
            where=name,
            hint="Name the file .json, .yaml or .yml",
        )
    content = read_bytes(file, max_bytes=max_bytes, folder=folder)
    lenient = lenient or ending == ".jsonc"
    yaml = ending in _YAML or (not known and not starts_as_json(content))
    return parse_document(content, name, yaml=yaml, lenient=lenient, max_bytes=max_bytes)


def starts_as_json(content: bytes) -> bool:
    """Whether a text begins like JSON, which YAML rarely does. Empty text counts as JSON."""
    return content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"[", b"")


def _is_pipe(file: Path) -> bool:
    """Whether the name of a file does not show its format."""
    return file.parts[:2] in (("/", "dev"), ("/", "proc")) or not isfile(file)  # noqa: PTH113


def _is_descriptor(path: Path) -> bool:
    """Whether a path names a file descriptor of this process."""
    return str(path) == "/dev/stdin" or str(path.parent) in ("/dev/fd", "/proc/self/fd")


def read_bytes(path: str | Path, *, max_bytes: int = MAX_BYTES, folder: Path | None = None) -> bytes:
    """The content of a file, at most `max_bytes` + 1 bytes.

    Args:
        path: a file; without `folder` also a pipe such as ``<(...)``, or standard input.
        folder: the folder that must contain the file, see :func:`unreadable_reason`; None if the user named
            the file.

    Raises:
        DocumentError: no such file, a folder, an unreadable or special file, a file outside `folder`, or a
            pipe without a writer.
    """
    name = printable(path)
    refused = unreadable_reason(Path(path), folder)
    if refused is not None and not (folder is None and _is_stream(path)):
        raise DocumentError(refused, where=name, hint=NAME_HINT if folder is None else COPY_HINT)
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            first = _first_of_pipe(opened.fileno(), name)
            return first + opened.read(max_bytes + 1 - len(first))
    except FileNotFoundError:
        hint = "Check the path"
        if _is_descriptor(Path(path)):
            hint = "Write what it has to a file: a pipe of the shell is not open in ranks of a launcher"
        raise DocumentError("no such file", where=name, hint=hint) from None
    except IsADirectoryError:
        raise DocumentError("is a folder, not a file", where=name, hint="Name a file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise DocumentError(f"cannot be read: {reason}", where=name, hint="Check its name and mode") from None


def _without_waiting(path: str, flags: int) -> int:
    """Opener for `open` that does not wait for the writer of a named pipe."""
    is_pipe = stat.S_ISFIFO(Path(path).stat().st_mode)
    return os.open(path, flags | os.O_NONBLOCK if is_pipe else flags)


def _is_stream(path: str | Path) -> bool:
    """Whether a file is a pipe or standard input."""
    found = Path(path).stat()
    with suppress(OSError):  # standard input may be closed
        if os.path.samestat(found, os.fstat(0)):
            return True
    return stat.S_ISFIFO(found.st_mode)


def _first_of_pipe(descriptor: int, name: str) -> bytes:
    """Wait for the writer of a pipe, with a limit. Returns the byte that was read, if any."""
    first = b""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return first
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(_PIPE_PATIENCE * 1000):
        with suppress(BlockingIOError):  # the writer is slow
            first = os.read(descriptor, 1)
            if not first:
                raise DocumentError("is a pipe that nobody writes to", where=name, hint="Name a file")
    os.set_blocking(descriptor, True)
    return first


def parse_document(
    content: bytes, name: str, *, yaml: bool = False, lenient: bool = False, max_bytes: int = MAX_BYTES
) -> Document:
    """Parse the bytes of a file.

    Args:
        content: of the file; a byte-order mark is skipped.
        lenient: accept the JSON that DeepSpeed accepts.
        max_bytes: the limit; for YAML at most 1 MiB.

    Raises:
        DocumentError: not UTF-8, too large, not JSON or YAML, or a duplicate key.
    """
    most = max_bytes if not yaml or len(content) > max_bytes else min(max_bytes, _MOST_YAML_BYTES)
    if len(content) > most:
        raise DocumentError(
            f"is larger than {most >> 20} MiB", where=name, hint="Name a file of settings, not of data"
        )
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("is UTF-16, not UTF-8", where=name, hint="Save it as UTF-8")
    if b"\0" in content:
        raise DocumentError("is a binary file, not text", where=name, hint="Name a text file")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError(
            f"is not UTF-8 (byte {error.start})", where=f"{name}:{line}", hint="Save it as UTF-8"
        ) from None
    if yaml:
        return parse_yaml(text.removeprefix("\ufeff"), name, most_entries=max_bytes // _BYTES_PER_YAML_ENTRY)
    return parse_json(text, name, lenient=lenient, most_entries=max_bytes // _BYTES_PER_ENTRY)

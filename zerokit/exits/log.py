"""Reads a log of any length: its first and last part, with line numbers."""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from zerokit.documents import unreadable_reason
from zerokit.errors import DocumentError, printable

HEAD_BYTES = 1 << 20
TAIL_BYTES = 4 << 20
"""The last part includes the tracebacks of a thousand ranks."""
_CHUNK = 1 << 20
_COMPRESSED = {
    **{b"\x1f\x8b": "zcat", b"BZh": "bzcat", b"\xfd7zXZ": "xzcat"},
    **{b"PK\x03\x04": "unzip -p", b"\x28\xb5\x2f\xfd": "zstdcat"},
}
"""First bytes of compressed files -> what unpacks them."""
_WIDEST = 10_000
"""Maximum characters of a line, apart from matches of patterns."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass
class Log:
    """A log that was read."""

    name: str
    text: str
    """Text without colours."""
    skipped_at: int | None = None
    """Offset in `text` before which lines were left out."""
    skipped_lines: int = 0
    _ends: array[int] = field(default_factory=lambda: array("Q"))
    """Offset of the end of each line; a progress bar's carriage return also ends one."""

    def __post_init__(self) -> None:
        lines = self.text.replace("\r", "\n").split("\n")
        self._ends = array("Q", accumulate(len(line) + 1 for line in lines))

    def line_at(self, offset: int) -> int:
        """The line number, from 1, at an offset of `text`, as an editor counts."""
        skipped = self.skipped_lines if self.skipped_at is not None and offset >= self.skipped_at else 0
        return self.text.count("\n", 0, offset) + 1 + skipped

    def bounds(self, offset: int) -> tuple[int, int]:
        """Offsets of the start and end of the line at `offset`."""
        return self._bounds(bisect_right(self._ends, offset))

    def lines_from(self, offset: int, most: int) -> Iterator[tuple[int, str]]:
        """Offset and text of the line at `offset` and of the next lines, at most `most`."""
        first = bisect_right(self._ends, offset)
        yield from map(self._line, range(first, min(first + most, len(self._ends))))

    def lines_above(self, offset: int, most: int) -> Iterator[tuple[int, str]]:
        """Offset and text of the lines above `offset`, nearest first, at most `most`."""
        own = bisect_right(self._ends, offset)
        yield from map(self._line, range(own - 1, max(own - 1 - most, -1), -1))

    def _bounds(self, number: int) -> tuple[int, int]:
        return self._ends[number - 1] if number else 0, self._ends[number] - 1

    def _line(self, number: int) -> tuple[int, str]:
        begin, end = self._bounds(number)
        return begin, self.text[begin : min(end, begin + _WIDEST)]


def read_log(path: str) -> Log:
    """Read a log; ``-`` is standard input.

    Raises:
        DocumentError: there is no such file, or it is a folder, a special file, or compressed.
    """
    if path == "-":
        return _read(sys.stdin.buffer, "stdin")
    name = printable(path)
    if (refused := unreadable_reason(Path(path))) is not None:
        raise DocumentError(refused, where=name, hint="Name a log file; for a pipe: explain-exit - < PIPE")
    try:
        with Path(path).open("rb") as file:
            return _read(file, name)
    except FileNotFoundError:
        hint = "Give a log, '-' for standard input, or an exit code such as -9"
        raise DocumentError("no such file", where=name, hint=hint) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise DocumentError(f"cannot be read: {reason}", where=name, hint="Name a log file") from None


def _read(file: BinaryIO, name: str) -> Log:
    head = _exactly(file, HEAD_BYTES)
    for magic, program in _COMPRESSED.items():
        if head.startswith(magic):
            raise DocumentError("is compressed", where=name, hint=f"Unpack it: {program} LOG | zerokit explain-exit -")
    tail = bytearray()
    left_out, is_whole = 0, True
    # The middle of a file is read too, to count its lines.
    while chunk := file.read(_CHUNK):
        tail += chunk
        if len(tail) > TAIL_BYTES + (4 << 20):
            left_out += tail.count(b"\n", 0, len(tail) - TAIL_BYTES)
            is_whole = False
            del tail[: len(tail) - TAIL_BYTES]
    if is_whole:  # A character may lie across the two parts.
        return Log(name, _text(head + tail))
    text = _text(head)
    return Log(name, text + _text(bytes(tail)), len(text), left_out)


def _exactly(file: BinaryIO, size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (chunk := file.read(size - len(content))):
        content += chunk
    return bytes(content)


def _text(content: bytes) -> str:
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return _COLOURS.sub("", content.decode(encoding, errors="replace")).replace("\r\n", "\n")

"""Opens text files as UTF-8, compressed or not; reports the first line that is not UTF-8."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from zerokit.data.files import faults_named, opened
from zerokit.errors import DataError


@contextmanager
def opened_text(file: Path, newline: str | None) -> Iterator[IO[str]]:
    """A file as text without a byte order mark; `newline` as of :func:`open`. DataError if it is damaged or
    not UTF-8.
    """
    with faults_named(file):
        _refuse_wide_characters(file)
        try:
            with opened(file, "rt", encoding="utf-8-sig", newline=newline) as text:
                yield text
        except UnicodeDecodeError as error:
            _refuse_line(file)
            raise DataError(str(error), where=str(file), hint="Save it as UTF-8") from None


def numbered_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and content of each line that is not blank, without line end. Raises DataError."""
    with faults_named(file):
        _refuse_wide_characters(file)
        with opened(file) as content:
            for number, line in enumerate(content, start=1):
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                if text and not text.isspace():
                    yield number, text.removesuffix(b"\n")


def decoded(line: bytes, where: str) -> str:
    """A line as text; DataError if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(str(error), where=where, hint="Save it as UTF-8") from None


def _refuse_line(file: Path) -> None:
    """Raise DataError for the first line that is not UTF-8."""
    with opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            decoded(line, f"{file}:{number}")


def _refuse_wide_characters(file: Path) -> None:
    with opened(file) as content:
        start: bytes = content.read(64)
    has_mark = start.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    # Without a mark: every second byte is zero, but not all are.
    halves = start[::2], start[1::2]
    is_wide = len(start) >= 8 and any(start) and not all(any(half) for half in halves)
    if has_mark or is_wide:
        raise DataError(
            "the file is not UTF-8 but UTF-16 or UTF-32", where=str(file), hint="Save it as UTF-8"
        )

"""Reads rows of JSON files: one list of objects, or an object on each line."""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from pydantic_core import from_json

from zerokit.data.files import decoded, numbered_lines, opened, opened_text, report_read_errors
from zerokit.documents import parse_json
from zerokit.errors import DataError, DocumentError

Row = dict[str, Any]
Rows = Generator[tuple[int, Row], None, int]
"""Line of each row, from 1, and the row. Returns the number of rows that are left to skip."""

_CHUNK = 1 << 20
"""Characters of a list to read at once."""
_LARGE_LIST = 16 << 20
"""Bytes; larger lists are not read again to find the usual cause of a fault."""
_SPACE = re.compile(r"[ \t\n\r]*")
_HALF_OF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
MAX_DEPTH = 200
"""Levels of brackets, as in pydantic's reader."""
_MARK = "\ufeff"


class _DuplicateKeyError(Exception):
    """An object has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DuplicateKeyError
    return found


def _number(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} does not fit a float")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number)
_FAULTS = (ValueError, RecursionError, _DuplicateKeyError)
"""Raised for what is not JSON."""


def is_json_list(file: Path) -> bool:
    """Whether a JSON file is one list instead of lines. Raises DataError."""
    with report_read_errors(file), opened(file) as content:
        start: bytes = content.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
        while not start.strip() and (more := content.read(64)):
            start = more
    return start.lstrip().startswith(b"[")


def json_rows(file: Path, *, skip: int = 0) -> Rows:
    """Read the rows of a JSON file, without the first `skip`. DataError with file and line."""
    if is_json_list(file):
        for number, _, row in list_rows(file):
            if skip:
                skip -= 1
            else:
                yield number, row
        return skip
    for number, line in numbered_lines(file):
        if skip:
            skip -= 1
        else:
            yield number, _line_row(line, file, number)[1]
    return skip


def json_texts(file: Path) -> Iterator[tuple[str, Row]]:
    """Text and value of each row of a JSON file. Raises DataError."""
    if is_json_list(file):
        return ((text, row) for _, text, row in list_rows(file))
    return (_line_row(line, file, number) for number, line in numbered_lines(file))


def list_rows(file: Path) -> Iterator[tuple[int, str, Row]]:
    """Line, text and value of each item of a file that is one list. Raises DataError."""
    with opened_text(file, "\n") as content:
        for number, text, row in _items(content, file):
            _check_example(row, f"{file}:{number}")
            yield number, text, row


def _line_row(line: bytes, file: Path, number: int) -> tuple[str, Row]:
    text = decoded(line, f"{file}:{number}").removeprefix(_MARK)  # which joined files have
    try:
        row = _DECODER.decode(text)
        _check(text, row)
    except _FAULTS as error:
        _fail_line(text, file, number, error)
    _check_example(row, f"{file}:{number}")
    return text, row


def _items(content: IO[str], file: Path) -> Iterator[tuple[int, str, Any]]:
    """Line, text and value of each item of a JSON list, with only a part of it in memory. DataError."""
    text, at, line = "", 0, 1
    separator = "["
    while True:
        try:
            mark = _after_space(text, at)
            if separator == "," and text[mark] == "]":
                break
            if text[mark] != separator:
                raise ValueError(f"expected '{separator}' or ']'")
            start = _after_space(text, mark + 1)
            if separator == "[" and text[start] == "]":
                at, separator = start, ","
                continue
            value, end = _DECODER.raw_decode(text, start)
            _check(text[start:end], value)
            if end == len(text):  # a number may go on
                raise IndexError
        except (*_FAULTS, IndexError) as error:
            more = "" if isinstance(error, _DuplicateKeyError) else content.read(max(_CHUNK, len(text) - at))
            if not more:
                _fail_list(file, line, error)
            line += text.count("\n", 0, at)
            text, at = text[at:] + more, 0
            continue
        line += text.count("\n", at, start)
        yield line, text[start:end], value
        line += text.count("\n", start, end)
        at, separator = end, ","
    rest = text[mark + 1 :]
    while not rest.strip():
        if not (rest := content.read(_CHUNK)):
            return
    _fail_list(file, line, ValueError("text after the list"))


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # the pattern matches the empty string
    return found.end()


def _check(text: str, value: Any) -> None:
    """Raise ValueError for half of a surrogate pair, which UTF-8 cannot write, and for deep nesting."""
    if _HALF_OF_A_CHARACTER.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(text):
        raise ValueError(f"is nested too deeply, by more than {MAX_DEPTH} levels")


def _is_too_deep(text: str) -> bool:
    """Whether a row has more levels than can be read back from the cache."""
    try:
        from_json(text)
    except ValueError:
        return True
    return False


def _check_example(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise DataError("an example is not a JSON object", where=where, hint='Write {"text": "..."} or the like')


def _fail_line(text: str, file: Path, line: int, error: Exception) -> NoReturn:
    """Raise DataError with the place and the usual cause of a line that is not JSON."""
    _raise_fault("\n" * (line - 1) + text.rstrip("\r\n"), file, is_line=True)
    raise DataError(str(error), where=f"{file}:{line}", hint="Write one JSON object on each line")


def _fail_list(file: Path, line: int, error: Exception) -> NoReturn:
    """Raise DataError with the place and the usual cause of what is not a list of JSON."""
    with opened(file) as content:
        start: bytes = content.read(_LARGE_LIST + 1)
    if len(start) <= _LARGE_LIST:
        _raise_fault(start.decode("utf-8-sig"), file)
    raise DataError(
        f"not a list of JSON objects: {error}", where=f"{file}:{line}", hint="Write one object on each line"
    )


def _raise_fault(text: str, file: Path, *, is_line: bool = False) -> None:
    """Raise DataError with the place and the usual cause of the first fault of JSON, if there is one."""
    try:
        parse_json(text, str(file), is_line=is_line)
    except DocumentError as found:
        is_of_lines = is_line and found.message.startswith(("the line ends", "a second JSON value"))
        hint = "Write each example on one line" if is_of_lines else found.hint
        raise DataError(found.message, where=found.where, hint=hint) from None

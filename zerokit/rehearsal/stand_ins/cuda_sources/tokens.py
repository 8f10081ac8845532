"""Words of C++ sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<character>'(?:\\.|[^'\\\n])+')
    | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign><<<|<<=|\.\.\.|\#\#|::|->|\+\+|--|<<|<=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|&=|\|=|\^=|\S)
    """,
    re.VERBOSE,
)
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\\": "\\", r"\'": "'"}
_JOINED = "\x00"
"""Stands for the end of a line that goes on in the next."""
_COMMENT = re.compile(
    r"""R"(?P<mark>[^()\\\s]*)\((?P<raw>.*?)\)(?P=mark)"
      | (?P<kept>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])')
      | //[^\n]*|/\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)


class Token(NamedTuple):
    """One word, and where it stands."""

    kind: str
    """``string``, ``character``, ``number``, ``name``, ``sign`` or ``end``."""
    text: str
    file: str
    line: int
    is_apart: bool = False
    """Something blank stands before it."""

    def __str__(self) -> str:
        return f"'{self.text}' ({self.file}:{self.line})"

    @property
    def value(self) -> str:
        """What a string holds."""

        def meant(found: re.Match[str]) -> str:
            if found[0] not in _ESCAPES:
                raise UnreadError(f"the escape {found[0]}", self)
            return _ESCAPES[found[0]]

        return re.sub(r"\\.", meant, self.text[1:-1])


class UnreadError(Exception):
    """Something that is not followed.

    Args:
        what: it is.
        where: it stands, if that is known; who runs the statement around it tells otherwise.
    """

    def __init__(self, what: str, where: Token | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where

    def __str__(self) -> str:
        return f"{self.what} ({self.where.file}:{self.where.line})" if self.where else self.what


class CompileError(Exception):
    """What the compiler refuses, too."""


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, each with its number; what a backslash or a comment joins is one."""
    text = re.sub(r"\\[ \t]*\n", _JOINED, text.replace("\r\n", "\n"))
    number = 1
    for line in _COMMENT.sub(_without_comment, text).split("\n"):
        yield number, line.replace(_JOINED, " ")
        number += 1 + line.count(_JOINED)


def _without_comment(found: re.Match[str]) -> str:
    ends = _JOINED * (found[0].count("\n") + found[0].count(_JOINED))
    if found["kept"] is not None:
        return found[0]
    if found["raw"] is not None:
        said = found["raw"].replace("\\", r"\\").replace('"', r"\"").replace(_JOINED, "\\\\\n")
        return '"' + said.replace("\n", r"\n") + '"' + ends
    return " " + ends


def words_of(text: str, file: str, line: int) -> Iterator[Token]:
    """The words of a line."""
    end = 0
    for found in _TOKEN.finditer(text):
        yield Token(found.lastgroup or "sign", found[0], file, line, found.start() > end)
        end = found.end()


def arguments_at(words: list[Token], place: int) -> tuple[list[list[Token]], int]:
    """What stands between the parentheses that open at `place`, by commas, and the place after them."""
    given: list[list[Token]] = [[]]
    depth = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.text in "([{" and word.kind == "sign":
            depth += 1
            if depth == 1:
                continue
        elif word.text in ")]}" and word.kind == "sign":
            depth -= 1
            if depth == 0:
                return (given if given != [[]] else []), place
        elif word.text == "," and depth == 1:
            given.append([])
            continue
        given[-1].append(word)
    raise UnreadError("a parenthesis that does not end", words[-1] if words else None)

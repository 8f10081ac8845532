"""Words of C++ sources, after their preprocessor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\")", re.DOTALL)
_TOKEN = re.compile(
    r"""
      (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<number>0[xX][\da-fA-F']+[uUlL]*|(?:\d[\d']*\.?[\d']*|\.\d+)(?:[eE][+-]?\d+)?[uUlLfF]*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign><<<|<<=|\.\.\.|\#\#|::|->|\+\+|--|<<|<=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|&=|\|=|\^=|[^\s])
    """,
    re.VERBOSE,
)
_DEFINE = re.compile(r"(\w+)(\(([^()]*)\))?\s*(.*)", re.DOTALL)
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\\": "\\", r"\'": "'"}


class Token(NamedTuple):
    """One word, and where it stands."""

    kind: str
    """``string``, ``number``, ``name``, ``sign`` or ``end``."""
    text: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"'{self.text}' ({self.file}:{self.line})"

    @property
    def value(self) -> str:
        """What a string holds."""
        return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), self.text[1:-1])


class UnreadError(Exception):
    """Something that is not understood."""


class _Macro(NamedTuple):
    parameters: list[str] | None
    """None: it takes none."""
    body: list[Token]


class Preprocessor:
    """Follows includes of a project's own files, conditions and macros.

    Args:
        defined: macros that the compiler's options define.
        folders: where else than beside a file its includes are looked for.
    """

    def __init__(self, defined: Mapping[str, str], folders: Iterable[Path] = ()) -> None:
        self._folders = list(folders)
        self._macros = {name: _Macro(None, list(_split(text, name, 0))) for name, text in defined.items()}
        self._included: set[Path] = set()

    def file(self, path: Path) -> Iterator[Token]:
        """The words of a file and of what it includes."""
        self._included.add(path.resolve())
        yield from self.text(path.read_text(encoding="utf-8", errors="replace"), path.name, path.parent)

    def text(self, source: str, name: str, folder: Path) -> Iterator[Token]:
        """The words of `source`, which is called `name` and lies in `folder`."""
        bare = _COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n") or " ", source)
        taken = [True]  # of each condition around, whether its lines count
        decided = [True]  # and whether one of its branches has been chosen
        waiting: list[Token] = []
        for number, line in _logical_lines(bare):
            if not line.lstrip().startswith("#"):
                if all(taken):
                    waiting += _split(line, name, number)
                continue
            word, _, rest = line.lstrip()[1:].strip().partition(" ")
            rest = rest.strip()
            if word in ("if", "ifdef", "ifndef"):
                chosen = all(taken) and self._holds(word, rest)
                taken.append(chosen)
                decided.append(chosen)
            elif word in ("else", "elif") and len(taken) > 1:
                chosen = not decided[-1] and all(taken[:-1]) and (word == "else" or self._holds("if", rest))
                taken[-1], decided[-1] = chosen, decided[-1] or chosen
            elif word == "endif" and len(taken) > 1:
                taken.pop()
                decided.pop()
            elif all(taken) and word in ("define", "undef", "include"):
                # What stands before is expanded with the macros that it sees.
                yield from self._expand(waiting)
                waiting = []
                if word == "include":
                    yield from self._include(rest, folder)
                elif word == "undef":
                    self._macros.pop(rest, None)
                else:
                    self._define(rest, name, number)
        yield from self._expand(waiting)

    def _include(self, what: str, folder: Path) -> Iterator[Token]:
        for parent in (folder, *self._folders):
            path = parent / what.strip('<>"')
            if path.is_file() and path.resolve() not in self._included:
                yield from self.file(path)
                return

    def _define(self, text: str, file: str, line: int) -> None:
        found = _DEFINE.fullmatch(text)
        if found:
            parameters = None
            if found[2] is not None:
                parameters = [part.strip() for part in found[3].split(",") if part.strip()]
            self._macros[found[1]] = _Macro(parameters, list(_split(found[4], file, line)))

    def _holds(self, word: str, rest: str) -> bool:
        if word != "if":
            return (rest.split()[0] in self._macros) is (word == "ifdef") if rest else False
        text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda found: str(int(found[1] in self._macros)), rest)
        words = list(self._expand(list(_split(text, "", 0))))
        python = {"&&": " and ", "||": " or ", "!": " not "}
        said = "".join(
            python.get(one.text, "0" if one.kind == "name" else one.text.rstrip("uUlL")) for one in words
        )
        if not re.fullmatch(r"[\d\s()<>=+\-*/%andortx]+", said):
            return False
        try:
            return bool(eval(said, {"__builtins__": {}}))  # noqa: S307  numbers and signs alone
        except (SyntaxError, ArithmeticError, TypeError):
            return False

    def _expand(self, words: list[Token], within: frozenset[str] = frozenset()) -> Iterator[Token]:
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            macro = self._macros.get(word.text) if word.kind == "name" else None
            if macro is None or word.text in within:
                yield word
                continue
            given: list[list[Token]] = []
            if macro.parameters is not None:
                if place >= len(words) or words[place].text != "(":
                    yield word
                    continue
                given, place = arguments_at(words, place)
            body = [one._replace(file=word.file, line=word.line) for one in _filled(macro, given)]
            yield from self._expand(body, within | {word.text})


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
    raise UnreadError("a parenthesis that does not end")


def _filled(macro: _Macro, given: list[list[Token]]) -> Iterator[Token]:
    names = dict(zip(macro.parameters or [], given, strict=False))
    if "..." in (macro.parameters or []):
        rest: list[Token] = []
        for one in given[len(macro.parameters or []) - 1 :]:
            rest += ([Token("sign", ",", "", 0)] if rest else []) + one
        names["__VA_ARGS__"] = rest
    body = macro.body
    place = 0
    while place < len(body):
        word = body[place]
        if word.text == "#" and place + 1 < len(body) and body[place + 1].text in names:
            said = " ".join(one.text for one in names[body[place + 1].text])
            yield word._replace(kind="string", text='"' + said.replace('"', "'") + '"')
            place += 2
        elif word.text == "##":
            raise UnreadError(f"a macro that pastes words together {word}")
        else:
            yield from names.get(word.text, [word]) if word.kind == "name" else [word]
            place += 1


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    joined, begin = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        begin = begin or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield begin, joined + line
        joined, begin = "", 0
    if joined:
        yield begin, joined


def _split(text: str, file: str, line: int) -> Iterator[Token]:
    for found in _TOKEN.finditer(text):
        yield Token(found.lastgroup or "sign", found[0], file, line)

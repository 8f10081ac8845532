"""The preprocessor of C++: includes of a project's own files, conditions and macros."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from zerokit.rehearsal.stand_ins.cuda_sources.conditions import condition_holds
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import (
    CompileError,
    Token,
    UnreadError,
    logical_lines,
    words_of,
)

_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*?)\s*", re.DOTALL)
_DEFINE = re.compile(r"(\w+)(\(([^()]*)\))?\s*(.*)", re.DOTALL)
_DEPTH = 100
"""Of includes; a file that includes itself goes on for ever."""
_ABSENT = re.compile(
    r"__CUDA_ARCH\w*|__HIP\w*|HIP_VERSION|__MUSA\w*|__SYCL\w*|__APPLE__|__clang__|_MSC_VER|_?_?WIN(?:32|64)(?:__)?"
    r"|__INTEL_COMPILER|__ANDROID__|__CUDACC_RTC__|__DEVICE_EMULATION__|__CUDACC__|__NVCC__|__CUDA_NO_\w+"
    r"|TORCH_HIP\w*"
)
"""Names that compilers and libraries define elsewhere than for the host, Linux and NVIDIA, or are told to."""
_THEIRS = re.compile(r"(?:__|TORCH_|AT_|C10_|PYBIND11_|CUDART_|CUDNN_|NCCL_)\w*")
"""Names that compilers and libraries define, whose headers are not read."""


class _Macro(NamedTuple):
    parameters: list[str] | None
    """None: it takes none."""
    body: list[Token]


_Hidden = frozenset[str]
"""Macros that a word came out of, which are not expanded in it once more."""


class Preprocessor:
    """That of one source.

    Args:
        defined: macros that the compiler and its options define.
        folders: where else than beside a file its includes are looked for.
    """

    def __init__(self, defined: Mapping[str, str], folders: Iterable[Path] = ()) -> None:
        self._folders = list(folders)
        self._macros = {name: _Macro(None, list(words_of(text, name, 0))) for name, text in defined.items()}
        self._once: set[Path] = set()
        self._open: list[Path] = []

    def file(self, path: Path) -> Iterator[Token]:
        """The words of a file and of what it includes.

        Raises:
            CompileError: an ``#error`` is reached.
            OSError: there is no such file.
            UnreadError: something in it is not followed.
        """
        if len(self._open) > _DEPTH:
            raise UnreadError(f"a file that includes itself, {path.name}")
        self._open.append(path.resolve())
        yield from self.text(path.read_text(encoding="utf-8", errors="replace"), path.name, path.parent)
        self._open.pop()

    def text(self, source: str, name: str, folder: Path) -> Iterator[Token]:
        """The words of `source`, which is called `name` and lies in `folder`."""
        taken = [True]  # of each condition around, whether its lines count
        decided = [True]  # and whether one of its branches has been chosen
        waiting: list[Token] = []
        for number, line in logical_lines(source):
            found = _DIRECTIVE.fullmatch(line)
            if found is None:
                if all(taken):
                    waiting += words_of(" " + line, name, number)
                continue
            word, rest = found[1], found[2]
            where = Token("sign", "#" + word, name, number)
            if word in ("if", "ifdef", "ifndef"):
                chosen = all(taken) and self._holds(word, rest, where, folder)
                decided.append(chosen or not all(taken))
                taken.append(chosen)
            elif word in ("else", "elif", "endif"):
                if len(taken) == 1:
                    raise UnreadError(f"an #{word} without its #if", where)
                if word == "endif":
                    taken.pop()
                    decided.pop()
                    continue
                chosen = not decided[-1] and (word == "else" or self._holds("if", rest, where, folder))
                taken[-1], decided[-1] = chosen, decided[-1] or chosen
            elif all(taken) and word not in ("", "pragma", "warning"):
                # What stands before is expanded with the macros that it sees.
                yield from self._expand(waiting)
                waiting = []
                yield from self._directive(word, rest, where, folder)
            elif all(taken) and re.match(r"once\b", rest) and self._open:
                self._once.add(self._open[-1])
        if len(taken) > 1:
            raise UnreadError("an #if without its #endif", Token("end", "", name, number))
        yield from self._expand(waiting)

    def _directive(self, word: str, rest: str, where: Token, folder: Path) -> Iterator[Token]:
        if word == "include":
            yield from self._include(rest, where, folder)
        elif word == "define":
            self._define(rest, where)
        elif word == "undef" and re.fullmatch(r"\w+", rest):
            self._macros.pop(rest, None)
        elif word == "error":
            raise CompileError(f"{where.file}:{where.line}: error: #error {rest}")
        else:
            raise UnreadError(f"the directive #{word}", where)

    def _include(self, what: str, where: Token, folder: Path) -> Iterator[Token]:
        found = re.match(r"<([^>]*)>|\"([^\"]*)\"", what)
        if found is None:
            raise UnreadError(f"an #include of {what}", where)
        path = self._own(found[1] or found[2], folder)
        if path is not None and path.resolve() not in self._once:
            yield from self.file(path)

    def _own(self, name: str, folder: Path) -> Path | None:
        """The file of the project that an include means; None for one of the toolkit's or torch's."""
        return next((path for parent in (folder, *self._folders) if (path := parent / name).is_file()), None)

    def _define(self, text: str, where: Token) -> None:
        found = _DEFINE.fullmatch(text)
        if found is None:
            raise UnreadError("a #define", where)
        parameters = None
        if found[2] is not None:
            parameters = [part.strip() for part in found[3].split(",") if part.strip()]
            if not all(re.fullmatch(r"[A-Za-z_]\w*", one) for one in parameters if one != "..."):
                raise UnreadError(f"the parameters of the macro {found[1]}", where)
        self._macros[found[1]] = _Macro(parameters, list(words_of(found[4], where.file, where.line)))

    # ---- conditions
    def _holds(self, word: str, rest: str, where: Token, folder: Path) -> bool:
        if word != "if":
            name = re.match(r"[A-Za-z_]\w*", rest)
            if name is None:
                raise UnreadError(f"the condition {rest}", where)
            # A name that the file then defines itself is a guard against a second include.
            return self._is_defined(name[0], None if word == "ifndef" else where) is (word == "ifdef")
        said = re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
            lambda found: str(int(self._is_defined(found[1] or found[2], where))),
            rest,
        )
        said = re.sub(
            r"\b__has_include\s*\(\s*[<\"]([^>\"]*)[>\"]\s*\)",
            lambda found: self._has_include(found[1], where, folder),
            said,
        )
        words = list(self._expand([*words_of(said, where.file, where.line)]))
        for one in words:
            if one.kind == "name":
                self._is_defined(one.text, where)
        return condition_holds(words, where)

    def _is_defined(self, name: str, where: Token | None) -> bool:
        """Raises:
        UnreadError: that depends on headers that are not read.
        """
        if name in self._macros:
            return True
        if where is not None and _THEIRS.fullmatch(name) and not _ABSENT.fullmatch(name):
            raise UnreadError(f"a condition on {name}", where)
        return False

    def _has_include(self, name: str, where: Token, folder: Path) -> str:
        if self._own(name, folder) is None:
            raise UnreadError(f"a condition on whether there is {name}", where)
        return "1"

    # ---- macros
    def _expand(self, words: list[Token]) -> Iterator[Token]:
        rest: list[tuple[Token, _Hidden]] = [(word, frozenset()) for word in reversed(words)]
        while rest:
            word, hidden = rest.pop()
            macro = self._macro(word)
            if macro is None or word.text in hidden:
                yield word
                continue
            given: list[list[Token]] = []
            if macro.parameters is not None:
                if not rest or rest[-1][0].text != "(":
                    yield word
                    continue
                given = _given(rest, word)
            hidden |= {word.text}
            filled = list(self._filled(macro, given, word))
            placed = [one._replace(file=word.file, line=word.line) for one in filled]
            placed[:1] = [one._replace(is_apart=word.is_apart) for one in placed[:1]]
            rest += [(one, hidden) for one in reversed(placed)]

    def _macro(self, word: Token) -> _Macro | None:
        if word.kind != "name":
            return None
        if word.text == "assert" and "NDEBUG" in self._macros:
            return _Macro(["..."], [])
        return self._macros.get(word.text)

    def _filled(self, macro: _Macro, given: list[list[Token]], where: Token) -> Iterator[Token]:
        names = _arguments(macro.parameters or [], given, where)
        body = macro.body
        place = 0
        while place < len(body):
            word, following = body[place], body[place + 1 : place + 2]
            if word.text == "#" and following and macro.parameters is not None:
                if following[0].text not in names:
                    raise UnreadError(f"the macro {where.text}", where)
                yield word._replace(kind="string", text=_spelled(names[following[0].text]))
                place += 2
            elif (following and following[0].text == "##") or word.text == "__VA_OPT__":
                pasted, place = _pasted(body, place, names, where)
                yield from pasted
            elif word.kind == "name" and word.text in names:
                filled = list(self._expand(names[word.text]))
                filled[:1] = [one._replace(is_apart=word.is_apart) for one in filled[:1]]
                yield from filled
                place += 1
            else:
                yield word
                place += 1


def _given(rest: list[tuple[Token, _Hidden]], where: Token) -> list[list[Token]]:
    """The arguments of a macro, which are taken from what follows it; parentheses alone protect commas."""
    given: list[list[Token]] = [[]]
    rest.pop()
    depth = 1
    while rest:
        word, _ = rest.pop()
        depth += (word.text == "(") - (word.text == ")")
        if depth == 0:
            return given
        if word.text == "," and depth == 1:
            given.append([])
        else:
            given[-1].append(word)
    raise UnreadError(f"the macro {where.text}, whose parenthesis does not end", where)


def _arguments(parameters: list[str], given: list[list[Token]], where: Token) -> dict[str, list[Token]]:
    named = [one for one in parameters if one != "..."]
    if given == [[]] and not named:
        given = []
    if len(given) < len(named) or (len(given) > len(named) and "..." not in parameters):
        raise UnreadError(f"the macro {where.text} with {len(given)} arguments", where)
    names = dict(zip(named, given, strict=False))
    if "..." in parameters:
        rest: list[Token] = []
        for count, one in enumerate(given[len(named) :]):
            rest += ([where._replace(kind="sign", text=",", is_apart=False)] if count else []) + one
        names["__VA_ARGS__"] = rest
    return names


def _spelled(words: list[Token]) -> str:
    """A string of how words are written."""
    said = ""
    for count, one in enumerate(words):
        text = one.text.replace("\\", r"\\").replace('"', r"\"") if one.kind == "string" else one.text
        said += (" " if one.is_apart and count else "") + text
    return f'"{said}"'


def _pasted(
    body: list[Token], place: int, names: Mapping[str, list[Token]], where: Token
) -> tuple[list[Token], int]:
    """What ``##`` makes of the words around it, and the place after them."""
    if body[place].text == "__VA_OPT__" or place + 2 >= len(body):
        raise UnreadError(f"the macro {where.text}, which has {body[place].text}", where)
    left = names.get(body[place].text, [body[place]])
    while place + 2 < len(body) and body[place + 1].text == "##":
        name = body[place + 2].text
        right = names.get(name, [body[place + 2]])
        place += 2
        if [one.text for one in left] == [","] and name == "__VA_ARGS__":
            left = [*left, *right] if right else []
        elif left and right:
            made = list(words_of(left[-1].text + right[0].text, where.file, where.line))
            if len(made) != 1:
                raise UnreadError(f"the macro {where.text}, which pastes words together", where)
            left = [*left[:-1], made[0], *right[1:]]
        else:
            left = [*left, *right]
    return left, place + 1

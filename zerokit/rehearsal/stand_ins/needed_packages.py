"""Which packages that are not installed here a script cannot do without: its own files say it.

A library looks for what is optional, and takes another way where it finds it; the script may do so, too. On
the cluster that way is its own choice, which nothing here tells of. So a package is needed only where a file
of the script's own imports it and nothing stands beside that import for when it fails, or where a
requirements file of its project names it.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from zerokit.rehearsal.call_sites import is_of_script, is_own_code, short_path
from zerokit.rehearsal.stand_ins.script_project import lines_in_files, script_file

_REQUIREMENTS = ("requirements*.txt", "requirements/*.txt")
_CATCHING = re.compile(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b")
"""What an import that fails is caught by."""
_LOOKED_FOR = re.compile(r"avail|find_spec|has_|have_|TYPE_CHECKING", re.IGNORECASE)
"""What is asked before an import that may not be done."""


@dataclass(frozen=True)
class Import:
    """A statement that imports a module."""

    modules: tuple[str, ...]
    """With names, if they may be modules of it: ``a`` and ``a.b`` of ``from a import b``."""
    level: int
    """Of a relative one."""
    lines: range
    is_caught: bool
    """Whether something is done without, where it fails."""
    is_sure: bool
    """Whether it is done whenever the file is run."""


class Needed:
    """Answers which packages the script of this process needs.

    Args:
        names: of each distribution, the modules that it brings, and what requirements files may call it.
    """

    def __init__(self, names: Mapping[str, frozenset[str]]) -> None:
        self._names = names
        self._started_in = Path.cwd()
        self._by: dict[str, str] = {}
        self.done_without: dict[str, str] = {}
        """Distributions that a file of the script's own imports and goes on without, and the line."""
        self._looked_in: tuple[str, ...] | None = None

    def by(self, distribution: str) -> str | None:
        """What needs it, in words that begin with a file and a line; None if nothing does.

        Libraries may ask before the script comes to its own import, and what they find is theirs for good: so
        the script's files are read ahead. What these do not show, such as a folder that the script
        adds to the places where modules lie, shows when the import is done.
        """
        looked_in = (sys.argv[0], *sys.path)
        if self._looked_in != looked_in:
            self._looked_in = looked_in
            for name, line in (*self._asked(), *self._imported()):
                self._by.setdefault(name, line)
        if distribution not in self._by and (imported := self._importing(distribution)):
            self._by[distribution] = f"{imported} imports it"
        return self._by.get(distribution)

    def _asked(self) -> Iterator[tuple[str, str]]:
        script = script_file(self._started_in)
        for place, text in lines_in_files(script, self._started_in, _REQUIREMENTS):
            plain = _plain(text)
            for name, words in self._names.items():
                if any(
                    re.search(rf"(?:^|[/=]){_plain(word)}(?:\.git)?(?:$|[^\w.-])", plain) for word in words
                ):
                    yield name, f"{place} asks for it"

    def _imported(self) -> Iterator[tuple[str, str]]:
        """What the script and the files of its own that it surely imports need."""
        script = script_file(self._started_in)
        if not is_of_script(str(script)):
            return
        roots = [script.parent, *(Path(entry).absolute() for entry in sys.path if _is_own_folder(entry))]
        files, seen = [script], {script}
        for file in files:  # which grows meanwhile
            for one in _imports_in(file):
                if one.is_sure and not one.is_caught:
                    for name in self._brings(one):
                        yield name, _said(file, one)
                    new = [inside for inside in _files_of(one, file, roots) if inside not in seen]
                    files += dict.fromkeys(new)
                    seen.update(new)

    def _brings(self, one: Import) -> Iterator[str]:
        top_level = {module.partition(".")[0] for module in one.modules if not one.level}
        return (name for name, modules in self._names.items() if modules & top_level)

    def _importing(self, distribution: str) -> str | None:
        """The line of the import of it that is being done, unless that or one that led to it is caught."""
        line = None
        for file, number in _stack():
            one = next((one for one in _imports_in(Path(file)) if number in one.lines), None)
            if line is None:
                if one is None or distribution not in self._brings(one):
                    return None
                line = f"{short_path(file)}:{one.lines.start}"
            if one is not None and one.is_caught:
                self.done_without.setdefault(distribution, line)
                return None
        return line


def own_line() -> str | None:
    """The line of a file of the script's own that asks for something; None if a library asks."""
    file, number = next(_stack(), ("", 0))
    return f"{short_path(file)}:{number}" if file else None


def _stack() -> Iterator[tuple[str, int]]:
    """Files and lines of the script's own, up from who asks; none if that is a library."""
    frame: FrameType | None = sys._getframe(1)
    is_first = True
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_own_code(file):  # what finds modules, here and in Python
            if _is_own_file(file):
                yield file, frame.f_lineno
            elif is_first:
                return
            is_first = False
        frame = frame.f_back


def _said(file: Path, one: Import) -> str:
    return f"{short_path(str(file))}:{one.lines.start} imports it"


def _plain(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _is_own_folder(entry: str) -> bool:
    """Whether modules that lie there are the script's own; packages may be put anywhere by pip's --target."""
    folder = Path(entry).absolute()
    return is_of_script(f"{folder}/") and folder.is_dir() and not any(folder.glob("*.dist-info"))


def _is_own_file(file: str) -> bool:
    if not is_of_script(file):
        return False
    folders = {Path(entry).absolute() for entry in sys.path} & set(Path(file).absolute().parents)
    return all(_is_own_folder(str(folder)) for folder in folders)


def _files_of(one: Import, importing: Path, roots: list[Path]) -> Iterator[Path]:
    """The files that an import runs, of those below `roots`."""
    if one.level:
        roots = [importing.parents[one.level - 1]]
    for module in filter(None, one.modules):
        yield from next(filter(None, (_files_below(str(root), module) for root in roots)), ())


@functools.cache
def _files_below(root: str, module: str) -> tuple[Path, ...]:
    """A module's file, after those of the packages that it is in; none if they do not lie there."""
    parent = module.rpartition(".")[0]
    around = _files_below(root, parent) if parent else ()
    place = os.path.join(root, *module.split("."))  # noqa: PTH118 - thousands of times
    if parent and not around and not os.path.isdir(os.path.dirname(place)):  # noqa: PTH112, PTH120
        return ()
    own = (f"{place}{os.sep}__init__.py", f"{place}.py")
    return (*around, *(Path(file) for file in own if os.path.isfile(file)))  # noqa: PTH113


@functools.cache
def _imports_in(file: Path) -> tuple[Import, ...]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ()
    return tuple(_imports(tree.body, is_caught=False, is_sure=True))


def _imports(statements: list[ast.stmt], *, is_caught: bool, is_sure: bool) -> Iterator[Import]:
    for one in statements:
        lines = range(one.lineno, (one.end_lineno or one.lineno) + 1)
        if isinstance(one, ast.Import):
            yield Import(tuple(alias.name for alias in one.names), 0, lines, is_caught, is_sure)
        elif isinstance(one, ast.ImportFrom):
            module = one.module or ""
            inside = (f"{module}.{alias.name}".strip(".") for alias in one.names)
            yield Import((module, *inside), one.level, lines, is_caught, is_sure)
        elif isinstance(one, ast.Try):
            does_without = any(_does_without(handler) for handler in one.handlers)
            yield from _imports(one.body, is_caught=is_caught or does_without, is_sure=is_sure)
            for handler in one.handlers:  # done only where what is above failed
                yield from _imports(handler.body, is_caught=is_caught, is_sure=False)
            yield from _imports([*one.orelse, *one.finalbody], is_caught=is_caught, is_sure=is_sure)
        elif isinstance(one, ast.If):
            test = ast.unparse(one.test)
            sure = is_sure and not _LOOKED_FOR.search(test)
            for inner in _imports([*one.body, *one.orelse], is_caught=is_caught, is_sure=sure):
                asked = any(part and part in test.lower() for part in map(_top_level, inner.modules))
                yield replace(inner, is_sure=inner.is_sure and not asked)
        elif isinstance(one, ast.With):
            caught = is_caught or "suppress" in ast.unparse(one.items[0].context_expr)
            yield from _imports(one.body, is_caught=caught, is_sure=is_sure)
        else:
            is_function = isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            for block in (getattr(one, "body", []), getattr(one, "orelse", [])):
                yield from _imports(block, is_caught=is_caught, is_sure=is_sure and not is_function)


def _does_without(handler: ast.ExceptHandler) -> bool:
    """Whether it catches an import that fails and goes on."""
    catches = handler.type is None or _CATCHING.search(ast.unparse(handler.type)) is not None
    ends = any(isinstance(one, ast.Raise) or "exit(" in ast.unparse(one) for one in handler.body)
    return catches and not ends


def _top_level(module: str) -> str:
    return module.partition(".")[0].lower()

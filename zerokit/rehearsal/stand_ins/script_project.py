"""The script that a rehearsal runs, and the folders of its project, where people write down what it needs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from zerokit.whose_code import is_installed

_FOLDERS = 4
"""So many folders, from the script's upwards, may be its project's."""
_MOST_BYTES = 2**20


def script_file(started_in: Path) -> Path:
    """Its file; a file beside a module's, while what runs is known by the module's name alone.

    A package is imported before the module in it is found, and may import what is stood in for.
    """
    script = started_in / sys.argv[0]
    if script.is_file():
        return script
    with suppress(ImportError, ValueError):  # ValueError: a module without a spec
        spec = importlib.util.find_spec(sys.argv[0].partition(".")[0])
        if spec is not None:
            inside = [Path(folder) / "__init__.py" for folder in spec.submodule_search_locations or ()]
            found = inside[0] if inside else Path(spec.origin or script)
            return started_in / found
    return script


def lines_in_files(script: Path, started_in: Path, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each line of the project's files of these names that is no comment, as ``file:line`` and text.

    Args:
        script: its file.
        started_in: the folder that it is started in, which comes first.
        patterns: of files, the surest first.
    """
    for folder in dict.fromkeys([started_in, *_folders(script)]):
        for pattern in patterns:
            for file in sorted(folder.glob(pattern)):
                with suppress(OSError, UnicodeDecodeError):
                    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
                        continue
                    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                        if not line.lstrip().startswith("#"):
                            yield f"{file.parent.name}/{file.name}:{number}", line


def _folders(script: Path) -> Iterator[Path]:
    """Those that may be its project's: upwards to its repository's, or below the home folder."""
    if is_installed(str(script)):
        return
    home = None
    with suppress(RuntimeError):  # a user without one, as in containers
        home = Path.home()
    for folder in script.parents[:_FOLDERS]:
        if folder != script.parent and home is not None and home.is_relative_to(folder):
            return
        yield folder
        if (folder / ".git").exists():
            return

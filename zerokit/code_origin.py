"""Whether a source file belongs to Python, to an installed library, or to the user, by its path.

A path may come from another machine, as in logs.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

INSTALLED = ("/site-packages/", "/dist-packages/")
"""Folders of installed packages: of pip, and of Debian."""
_PYTHONS = re.compile(r"/lib(?:32|64)?/python3\.\d{1,3}t?/|/contextlib\.py$")
"""contextlib appears between the user's and a library's context managers, wherever Python is installed."""
_PYTHON_HERE = f"{Path(os.__file__).parent}/"


def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package."""
    return any(folder in path for folder in INSTALLED)


def is_no_file(path: str) -> bool:
    """Whether code has no file: ``<frozen runpy>``, or ``<string>``, whose owner is unknown."""
    return path.startswith("<")


@functools.cache
def is_stdlib(path: str) -> bool:
    """Whether a file belongs to Python itself; frozen modules included."""
    is_own = path.startswith(_PYTHON_HERE) or _PYTHONS.search(path) is not None
    return path.startswith("<frozen ") or (is_own and not is_installed(path))


def path_in_library(path: str) -> str:
    """The path of a file inside the folder of installed packages or of Python's library; all of it elsewhere."""
    for folder in INSTALLED:
        _, found, inside = path.rpartition(folder)
        if found:
            return inside
    return path.removeprefix(_PYTHON_HERE)


@functools.cache
def is_in_library(path: str) -> bool:
    """Whether a file belongs to an installed package or to Python, not to the user."""
    return is_installed(path) or is_stdlib(path)

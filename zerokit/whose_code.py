"""Whose code a line is, by the path of its file: Python's own, an installed library's, or the user's.

A path may be of another machine, as those in logs are.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

INSTALLED = ("/site-packages/", "/dist-packages/")
"""In whose folders packages lie: pip's, and those of Debian and of images that build on it."""
_PYTHONS = re.compile(r"/lib(?:32|64)?/python3\.\d{1,3}t?/|/contextlib\.py$")
"""A context manager of the user's enters those of libraries by contextlib, wherever Python lies."""
_PYTHON_HERE = f"{Path(os.__file__).parent}/"


def is_installed(path: str) -> bool:
    """Whether a file is of an installed package."""
    return any(folder in path for folder in INSTALLED)


def is_no_file(path: str) -> bool:
    """Whether code was compiled from no file: ``<frozen runpy>``, or ``<string>``, which may be anybody's."""
    return path.startswith("<")


@functools.cache
def is_stdlib(path: str) -> bool:
    """Whether a file is of Python itself, or was until it was frozen."""
    is_own = path.startswith(_PYTHON_HERE) or _PYTHONS.search(path) is not None
    return path.startswith("<frozen ") or (is_own and not is_installed(path))


@functools.cache
def is_in_library(path: str) -> bool:
    """Whether a file is of an installed package or of Python, and not the user's."""
    return is_installed(path) or is_stdlib(path)

"""Types of the C functions of a loaded library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

Signatures = Mapping[str, tuple[Any, list[Any]]]
"""Result and argument types, by the names of functions that share them, between spaces."""


def declare(library: ctypes.CDLL, prefix: str, signatures: Signatures) -> None:
    """Set the types of functions, whose full names begin with `prefix`."""
    for names, (result, arguments) in signatures.items():
        for name in names.split():
            function = getattr(library, f"{prefix}{name}")
            function.restype, function.argtypes = result, arguments

"""Types of the C functions of a loaded library."""

from __future__ import annotations

import ctypes
from typing import Any

from zerokit.tables import table_of

_TYPES: dict[str, Any] = {
    **{"int": ctypes.c_int, "long": ctypes.c_int64, "double": ctypes.c_double},
    **{"text": ctypes.c_char_p, "pointer": ctypes.c_void_p, "": None},
}


def declare(library: ctypes.CDLL, prefix: str) -> None:
    """Set the types of the functions whose names begin with `prefix`: arguments, and the result after ``->``."""
    for name, signature in table_of(__file__)[prefix].items():
        arguments, _, result = signature.partition("->")
        function = getattr(library, f"{prefix}{name}")
        function.argtypes = [_TYPES[word] for word in arguments.split()]
        function.restype = _TYPES[result.strip()]

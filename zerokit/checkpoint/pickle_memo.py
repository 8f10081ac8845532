"""Refuses pickles that would have an unpickler take all memory, in little time."""

from __future__ import annotations

import io
import re

_RUN = re.compile(
    rb"(?:[()}\]N012abdelostuQR\x81\x85-\x89\x8f-\x94]|[K\x80qh\x82].|[M\x83].{2}|[Jj\x84].{4}|[G\x95].{8}"
    rb"|r..[\x00-\x0f]\x00)*+",
    re.DOTALL,
)
"""Operations of a fixed length (pickletools.opcodes) that give no object a number above `_ALWAYS`."""
_ALWAYS = (1 << 20) - 1
"""A number that any pickle may have: its table is of 16 MiB."""
_LENGTHS = {
    **dict.fromkeys(b"UC\x8c\x8a", 1),
    **dict.fromkeys(b"XTB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e\x96", 8),
}
"""Operations with as many bytes of length before what they hold."""
_LINES = {**dict.fromkeys(b"FILSVgpP", 1), **dict.fromkeys(b"ci", 2)}
"""Operations with as many lines."""
_PUT, _LONG_BINPUT, _STOP = b"pr."


def check_memo(pickled: io.BytesIO) -> None:
    """Refuse a pickle that numbers its objects far beyond its bytes: unpicklers make a table of that many.

    Args:
        pickled: at the pickle's first operation; where it is afterwards is not defined.

    Raises:
        ValueError: it does, or it is cut short or damaged.
    """
    content, at = pickled.getvalue(), pickled.tell()
    while True:
        run = _RUN.match(content, at)
        at = run.end() if run is not None else at
        if at >= len(content):
            raise ValueError("its pickle has no end")
        operation = content[at]
        at += 1
        if operation == _STOP:
            return
        if operation == _LONG_BINPUT:
            _check(int.from_bytes(content[at : at + 4], "little"), len(content))
            at += 4
        elif operation in _LENGTHS:
            size = _LENGTHS[operation]
            at += size + int.from_bytes(content[at : at + size], "little")
        elif operation in _LINES:
            for _ in range(_LINES[operation]):
                end = content.find(b"\n", at)
                if end < 0:
                    raise ValueError("its pickle has no end")
                if operation == _PUT:
                    _check(int(content[at:end]), len(content))
                at = end + 1
        else:
            raise ValueError(f"its pickle has an unknown operation {operation:#x}")


def _check(number: int, most: int) -> None:
    if number > max(most, _ALWAYS):
        raise ValueError(f"its pickle has an object of number {number:,}")

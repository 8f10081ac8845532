"""Limits for untrusted pickles, where a few bytes could take all memory, or hours.

Two operations cost far more than their bytes: the table of numbered objects, and keys with equal hashes.
"""

import io
import re
from collections import OrderedDict
from typing import Any

_RUN = re.compile(
    rb"(?:\((?!d)|[)\]N012abelostuQR\x81\x85-\x89\x90\x92-\x94]|[K\x80qh\x82].|[M\x83].{2}|[Jj\x84].{4}"
    rb"|G.{8}|r..[\x00-\x0f]\x00){0,4096}",
    re.DOTALL,
)
"""Operations of a fixed length (pickletools.opcodes) that number no object above `_ALWAYS`.

Not possessive (`*+`): Python 3.11.2 then passes over the lookahead. Without a limit the matcher would keep a
state of each operation.
"""
_ALWAYS = (1 << 20) - 1
"""A number that any pickle may use: its table has 16 MiB."""
_LENGTHS = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"XTB\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""Operations with a length of so many bytes before their content."""
_LINES = {**dict.fromkeys(b"FILSVgpP", 1), **dict.fromkeys(b"ci", 2)}
"""Operations with so many lines."""
_PUT, _LONG_BINPUT, _STOP, _LONG4, _MARK, _FRAME = b"pr.\x8b(\x95"
_REPLACED_BYTES = {_MARK: 2, _FRAME: 9}
"""Lengths of replaced operations. Frames are left out, because their lengths change."""
_MOST_OF_INTEGER = 1024
"""Bytes. Python refuses to print integers of more than 1,786."""

CHECKED_DICT, CHECKED_SET = "zerokit.dict", "zerokit.set"
"""Names in a pickle after :func:`guarded`, for the unpickler to find."""
_REPLACED = {
    b"}": b"czerokit\ndict\n)\x81",
    b"(d": b"czerokit\ndict\n)\x81",  # how protocol 0 writes a dict
    b"\x8f": b"czerokit\nset\n)\x81",
    b"\x91": b"t",  # a tuple instead of a frozenset
}
"""Replacements of operations that make a dict or a set: they make a checked one."""
_MOST_OF_ONE_HASH = 100
_PLAIN = (str, bytes, int, float, bool, type(None))


class PickleLimitError(ValueError):
    """A pickle goes beyond a limit."""


def guarded(pickled: io.BytesIO) -> io.BytesIO:
    """The same pickle with dicts and sets that check their keys; `pickled` is then at its end.

    Raises:
        PickleLimitError: it numbers objects far beyond its size, or has a very long integer.
        ValueError: it is cut short or damaged.
    """
    content, at = pickled.getvalue(), pickled.tell()
    written: list[bytes] = []
    copied = at
    while True:
        while (run := _RUN.match(content, at)) and run.end() > at:
            at = run.end()
        if at >= len(content):
            raise ValueError("its pickle has no end")
        operation = content[at]
        replaced = content[at : at + _REPLACED_BYTES.get(operation, 1)]
        by = b"" if operation == _FRAME else _REPLACED.get(replaced)
        if by is not None:
            written += [content[copied:at], by]
            at = copied = at + len(replaced)
            continue
        at += 1
        if operation == _STOP:
            pickled.seek(at)
            return io.BytesIO(b"".join([*written, content[copied:at]]))
        at = _end_of(operation, content, at)


def _end_of(operation: int, content: bytes, at: int) -> int:
    """The end of the argument that begins at `at`."""
    if operation == _LONG_BINPUT:
        _check_number(int.from_bytes(content[at : at + 4], "little"), len(content))
        return at + 4
    if operation in _LENGTHS:
        size = _LENGTHS[operation]
        length = int.from_bytes(content[at : at + size], "little")
        if operation == _LONG4 and length > _MOST_OF_INTEGER:
            raise PickleLimitError(f"its pickle has an integer of {length:,} bytes")
        return at + size + length
    if operation in _LINES:
        for _ in range(_LINES[operation]):
            end = content.find(b"\n", at)
            if end < 0:
                raise ValueError("its pickle has no end")
            if operation == _PUT:
                _check_number(int(content[at:end]), len(content))
            at = end + 1
        return at
    raise ValueError(f"its pickle has an unknown operation {operation:#x}")


def _check_number(number: int, most: int) -> None:
    if number > max(most, _ALWAYS):
        raise PickleLimitError(f"its pickle has an object of number {number:,}")


class _Checked:
    """Counts keys by their hash. Strings are not counted: their hashes are random."""

    __slots__ = ()

    def __init__(self, items: Any = ()) -> None:
        super().__init__()
        for key, value in items.items() if isinstance(items, dict) else items:
            self[key] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is not str:
            self._count(key)
        super().__setitem__(key, value)  # type: ignore[misc]  # of the dict

    def _count(self, key: Any) -> None:
        """Count a key before the dict hashes it.

        Raises:
            PickleLimitError: too many keys have its hash, or it is a tuple of tuples.
        """
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(one, tuple) for one in parts):
            raise PickleLimitError("its pickle has a tuple of tuples as a key")
        numbers: dict[int, int] = getattr(self, "_numbers", {})
        self._numbers = numbers  # type: ignore[misc]  # a slot of each subclass
        # Keys of other types count as if they had one hash.
        hashed = hash(key) if all(type(one) in _PLAIN for one in parts) else 0
        numbers[hashed] = numbers.get(hashed, 0) + 1
        if numbers[hashed] > _MOST_OF_ONE_HASH:
            raise PickleLimitError(f"its pickle has more than {_MOST_OF_ONE_HASH} keys of one hash")


class CheckedDict(_Checked, dict[Any, Any]):
    """A dict of a pickle."""

    __slots__ = ("_numbers",)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a dict with a state")


class CheckedOrderedDict(_Checked, OrderedDict[Any, Any]):
    """An OrderedDict of a pickle."""

    __slots__ = ("_numbers",)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(type(name) is str for name in state):
            raise ValueError("an OrderedDict with an unknown state")
        vars(self).update(state)

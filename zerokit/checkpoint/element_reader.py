"""Reads and converts the elements of tensors block by block."""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from zerokit.checkpoint.torch_file import ITEMSIZES, Storage
from zerokit.errors import CheckpointError
from zerokit.extras import require

if TYPE_CHECKING:
    import numpy as np

    from zerokit.checkpoint.tensors import NamedTensor

Block: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
"""The bytes of some elements."""
BLOCK_ELEMENTS = 4 << 20
_MAX_OPEN_FILES = 64
"""Files that are open at once."""


class ElementReader:
    """Reads elements, and checks that their storages are unchanged since they were saved."""

    def __init__(self) -> None:
        require("checkpoint", where="zerokit checkpoint")
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._read: dict[Storage, tuple[int, int]] = {}
        """For each storage, bytes read in order, and their CRC-32."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def blocks(self, tensor: NamedTensor) -> Iterator[Block]:
        """Yield all elements in order, at most `BLOCK_ELEMENTS` at a time.

        Raises:
            CheckpointError: a file cannot be read, or is shorter than before.
        """
        import numpy as np

        itemsize = ITEMSIZES[tensor.dtype]
        block = np.empty(min(tensor.numel, BLOCK_ELEMENTS) * itemsize, np.uint8)
        filled = 0
        for piece in tensor.pieces:
            offset, left = piece.offset, piece.numel * itemsize
            while left:
                count = min(left, block.size - filled)
                self._fill(piece.storage, offset, block[filled : filled + count])
                filled, offset, left = filled + count, offset + count, left - count
                if filled == block.size:
                    yield _multiplied(block, tensor)
                    filled = 0
        if filled:
            yield _multiplied(block[:filled], tensor)

    def finish(self) -> None:
        """Read the rest of the storages that were read from. CheckpointError if a storage is not what was saved."""
        import numpy as np

        buffer = np.empty(BLOCK_ELEMENTS, np.uint8)
        checked = (storage for storage in self._read if storage.crc is not None)
        for storage in sorted(checked, key=lambda one: (one.file, one.offset)):
            while (begin := self._read[storage][0]) < storage.nbytes:
                self._fill(storage, begin, buffer[: min(buffer.size, storage.nbytes - begin)])
            if self._read[storage][1] != storage.crc:
                raise CheckpointError(
                    f"has changed since it was saved (tensor storage {storage.key})",
                    where=storage.file,
                    hint="Copy it again, or use another checkpoint",
                )

    def check(self, storage: Storage) -> None:
        """Check a storage at the next :meth:`finish`."""
        self._read.setdefault(storage, (0, 0))

    def _fill(self, storage: Storage, offset: int, into: Block) -> None:
        view = into.data
        try:
            file = self._opened(storage.file)
            while view:
                read = os.preadv(file, [view], storage.offset + offset + into.size - len(view))
                if not read:
                    raise CheckpointError("has become shorter", where=storage.file, hint="Copy it again")
                view = view[read:]
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise CheckpointError(problem, where=storage.file, hint="Check the disk") from None
        done, crc = self._read.get(storage, (0, 0))
        # finish() checks what is read out of order.
        self._read[storage] = (done + into.size, zlib.crc32(into.data, crc)) if offset == done else (done, crc)

    def _opened(self, file: Path) -> int:
        if file not in self._open:
            if len(self._open) >= _MAX_OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[file] = os.open(file, os.O_RDONLY)
        self._open.move_to_end(file)
        return self._open[file]


def is_equal(left: NamedTensor, right: NamedTensor) -> bool:
    """Whether two tensors have the same type, shape and bytes."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    with ElementReader() as reader:
        pairs = zip(reader.blocks(left), reader.blocks(right), strict=True)
        return all((first == second).all() for first, second in pairs)


def converter(of: str, to: str) -> Callable[[Block], Block]:
    """A function that converts bytes of one type to another, rounded to nearest.

    Both types are float64, float32, float16 or bfloat16, or both are equal.
    """
    if of == to:
        return lambda block: block
    return lambda block: _narrowed(_widened(block, of), to)


def is_finite(block: Block, dtype: str) -> bool:
    """Whether no element is infinite or NaN; True for other types than :func:`converter` supports."""
    import numpy as np

    return dtype not in CONVERTIBLE or bool(np.isfinite(_widened(block, dtype)).all())


def difference(left: Block, right: Block, dtype: str) -> tuple[int, float]:
    """The number of different elements of two blocks, and the largest difference; infinite if it is no
    number."""
    import numpy as np

    differing = (left != right).reshape(-1, ITEMSIZES[dtype]).any(axis=1)
    count = int(differing.sum())
    if not count or dtype not in CONVERTIBLE:
        return count, 0.0 if not count else float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        values = [_widened(block, dtype)[differing].astype(np.float64) for block in (left, right)]
        distance = np.abs(values[0] - values[1])
    return count, float(distance.max()) if np.isfinite(distance).all() else float("inf")


CONVERTIBLE = ("float64", "float32", "float16", "bfloat16")


def _multiplied(block: Block, tensor: NamedTensor) -> Block:
    if tensor.factor == 1 or tensor.dtype not in CONVERTIBLE:
        return block
    return _narrowed(_widened(block, tensor.dtype) * tensor.factor, tensor.dtype)


def _widened(block: Block, dtype: str) -> Any:
    import numpy as np

    if dtype == "bfloat16":
        return (block.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    found = block.view(np.dtype(dtype))
    return found.astype(np.float32) if dtype == "float16" else found


def _narrowed(found: Any, dtype: str) -> Block:
    import numpy as np

    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # infinite, as torch makes it
            narrow: Block = found.astype(np.dtype(dtype)).view(np.uint8)
        return narrow
    bits = found.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF
    rounded += (bits >> 16) & 1
    rounded >>= 16
    result = rounded.astype(np.uint16)
    is_nan = np.isnan(bits.view(np.float32))
    if is_nan.any():
        result[is_nan] = 0x7FC0
    narrowed: Block = result.view(np.uint8)
    return narrowed

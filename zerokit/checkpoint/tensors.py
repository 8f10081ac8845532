"""Named tensors whose elements lie in pieces in the files of ranks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from zerokit.checkpoint.step_folder import AGAIN
from zerokit.checkpoint.torch_file import ITEMSIZES, Storage, StoredTensor, TensorSize
from zerokit.documents import shown
from zerokit.errors import CheckpointError

_OTHERS = "the files are of different models or world sizes"


@dataclass(frozen=True)
class Piece:
    """Elements that lie next to each other in a storage."""

    storage: Storage
    offset: int
    """In bytes from the start of the storage."""
    numel: int


@dataclass(frozen=True)
class NamedTensor(TensorSize):
    """A tensor, its elements in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[Piece]
    factor: float = 1.0
    """By which the elements in the files are multiplied."""

    def named(self, name: str) -> NamedTensor:
        """The same under another name."""
        return replace(self, name=name)

    def cut(self, begin: int, end: int) -> NamedTensor:
        """Its elements from `begin` on to before `end`, as far as it has them, in one row."""
        pieces = tuple(PieceRow(self.pieces, ITEMSIZES[self.dtype]).cut(begin, end))
        return replace(self, shape=(sum(piece.numel for piece in pieces),), pieces=pieces)


class PieceRow:
    """Pieces one after the other; finds the piece of an element by bisection."""

    def __init__(self, pieces: Sequence[Piece], itemsize: int) -> None:
        self._pieces, self._itemsize = pieces, itemsize
        self._ends = list(accumulate(piece.numel for piece in pieces))

    def cut(self, begin: int, end: int) -> Iterator[Piece]:
        """The elements from `begin` to before `end`."""
        number = bisect_right(self._ends, begin)
        while begin < end and number < len(self._pieces):
            piece, last = self._pieces[number], min(end, self._ends[number])
            skipped = begin - (self._ends[number] - piece.numel)
            yield Piece(piece.storage, piece.offset + skipped * self._itemsize, last - begin)
            begin, number = last, bisect_right(self._ends, last)


def whole_tensor(name: str, tensor: StoredTensor) -> NamedTensor:
    """A tensor that one file has all of.

    Raises:
        CheckpointError: its elements do not lie in order.
    """
    if not tensor.is_contiguous:
        raise CheckpointError(f"'{name}' is not contiguous", where=shown(tensor.file), hint=AGAIN)
    return NamedTensor(
        name, tensor.dtype, tensor.shape, (Piece(tensor.storage, tensor.offset, tensor.numel),)
    )


def joined_tensor(name: str, shape: Sequence[int], parts: Sequence[StoredTensor]) -> NamedTensor:
    """A tensor of what ranks have of it, the last of them padded.

    Raises:
        CheckpointError: they have too little.
    """
    return FlatTensors(parts).tensor(name, shape, 0)


class FlatTensors:
    """Flat tensors one after the other, in which parameters lie one after the other."""

    def __init__(self, parts: Sequence[StoredTensor]) -> None:
        self.parts = parts
        self.dtype = parts[0].dtype
        pieces = [Piece(part.storage, part.offset, part.numel) for part in parts]
        self.numel = sum(piece.numel for piece in pieces)
        self._row = PieceRow(pieces, ITEMSIZES[self.dtype])

    def tensor(self, name: str, shape: Sequence[int], offset: int) -> NamedTensor:
        """The parameter that begins at element `offset`."""
        return NamedTensor(name, self.dtype, tuple(shape), tuple(self.pieces(offset, math.prod(shape), name)))

    def pieces(self, offset: int, numel: int, name: str) -> Iterator[Piece]:
        """Where `numel` elements from `offset` on lie.

        Raises:
            CheckpointError: they do not.
        """
        if offset + numel > self.numel:
            raise CheckpointError(
                f"'{name}' lies beyond the {self.numel:,} elements that were saved: {_OTHERS}",
                where=shown(self.parts[-1].file),
                hint=AGAIN,
            )
        return self._row.cut(offset, offset + numel)

    def check_end(self, offset: int, alignment: int) -> None:
        """See that behind the last parameter no more is left than alignment has added.

        As zero_to_fp32.py (`_zero2_merge_trainable_params`) sees it.

        Raises:
            CheckpointError: more is.
        """
        if math.ceil(offset / alignment) != math.ceil(self.numel / alignment):
            raise CheckpointError(
                f"has {self.numel - offset:,} elements that belong to no parameter: {_OTHERS}",
                where=shown(self.parts[-1].file),
                hint=AGAIN,
            )

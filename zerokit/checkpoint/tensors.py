"""Named tensors whose elements are in the files of several ranks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from zerokit.checkpoint.step_folder import AGAIN
from zerokit.checkpoint.torch_file import ITEMSIZES, Storage, StoredTensor, TensorSize
from zerokit.errors import CheckpointError

_OTHERS = "the files belong to different models or world sizes"


@dataclass(frozen=True)
class Piece:
    """Elements that are contiguous in a storage."""

    storage: Storage
    offset: int
    """In bytes from the start of the storage."""
    numel: int


@dataclass(frozen=True)
class NamedTensor(TensorSize):
    """A tensor with its elements in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[Piece]
    factor: float = 1.0
    """Factor of the elements in the files."""

    def named(self, name: str) -> NamedTensor:
        """The same tensor with another name."""
        return replace(self, name=name)

    def cut(self, begin: int, end: int) -> NamedTensor:
        """Its elements from `begin` to before `end`, as far as it has them, in one dimension."""
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
    """A tensor that is saved whole in one file. CheckpointError if it is not contiguous."""
    if not tensor.is_contiguous:
        raise CheckpointError(f"'{name}' is not contiguous", where=tensor.file, hint=AGAIN)
    return NamedTensor(name, tensor.dtype, tensor.shape, (Piece(tensor.storage, tensor.offset, tensor.numel),))


def joined_tensor(name: str, shape: Sequence[int], parts: Sequence[StoredTensor]) -> NamedTensor:
    """A tensor joined from the parts of ranks, the last of them padded. CheckpointError if the parts are too small."""
    return FlatTensors(parts).tensor(name, shape, 0)


class FlatTensors:
    """Flat buffers of ranks, concatenated; they hold parameters one after the other."""

    def __init__(self, parts: Sequence[StoredTensor]) -> None:
        self.parts = parts
        self.dtype = parts[0].dtype
        pieces = [Piece(part.storage, part.offset, part.numel) for part in parts]
        self.numel = sum(piece.numel for piece in pieces)
        self._row = PieceRow(pieces, ITEMSIZES[self.dtype])

    def tensor(self, name: str, shape: Sequence[int], offset: int) -> NamedTensor:
        """The parameter at element `offset`."""
        return NamedTensor(name, self.dtype, tuple(shape), tuple(self.pieces(offset, math.prod(shape), name)))

    def pieces(self, offset: int, numel: int, name: str) -> Iterator[Piece]:
        """The pieces of `numel` elements from `offset`. CheckpointError if they lie beyond the end."""
        if offset + numel > self.numel:
            raise CheckpointError(
                f"'{name}' exceeds the {self.numel:,} saved elements: {_OTHERS}", where=self.parts[-1].file, hint=AGAIN
            )
        return self._row.cut(offset, offset + numel)

    def check_end(self, offset: int, alignment: int) -> None:
        """Check that nothing but alignment padding is left after the last parameter.

        zero_to_fp32.py checks the same (`_zero2_merge_trainable_params`).

        Raises:
            CheckpointError: more is left.
        """
        if math.ceil(offset / alignment) != math.ceil(self.numel / alignment):
            raise CheckpointError(
                f"has {self.numel - offset:,} elements that belong to no parameter: {_OTHERS}",
                where=self.parts[-1].file,
                hint=AGAIN,
            )

"""Merges an adapter into a weight, block by block, in float32 and rounded once to the weight's type.

As in peft: LoRA adds ``scale * B @ A`` (peft/tuners/lora/layer.py, `get_delta_weight`), DoRA also scales the
sum to its learned magnitudes (lora/variants.py, `DoraLinearVariant`), and IA3 multiplies rows or columns
(ia3/layer.py, `merge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.element_reader import BLOCK_ELEMENTS, Block, ElementReader, converter

if TYPE_CHECKING:
    from zerokit.checkpoint.tensors import NamedTensor

_Rows = Callable[[], Iterator[tuple[int, Any]]]
"""Iterates over a weight: the number of each block's first row, and the block (rows, columns)."""


@dataclass(frozen=True)
class LoraDelta:
    """LoRA or DoRA: ``scale * up @ down`` is added."""

    down: NamedTensor
    """A, of shape (r, in)."""
    up: NamedTensor
    """B, of shape (out, r)."""
    scale: float
    transposed: bool
    """Whether the weight has shape (in, out)."""
    magnitudes: NamedTensor | None = None
    """DoRA's magnitudes, (out,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.up.shape[0], self.down.shape[1]
        return shape[::-1] if self.transposed else shape

    def rows(self, reader: ElementReader, weight: _Rows) -> Iterator[Any]:
        """Yield the changed weight block by block."""
        import numpy as np

        down, up = (matrix(reader, one) for one in (self.down, self.up))
        left, right = (down.T, up.T) if self.transposed else (up, down)

        def summed() -> Iterator[tuple[int, Any]]:
            for begin, block in weight():
                yield begin, block + (left[begin : begin + len(block)] @ right) * np.float32(self.scale)

        if self.magnitudes is None:
            yield from (block for _, block in summed())
            return
        magnitudes = matrix(reader, self.magnitudes).reshape(-1)
        if self.transposed:
            squares = sum((np.square(block, dtype=np.float64).sum(0) for _, block in summed()), np.float64())
            factor = (magnitudes / np.sqrt(squares)).astype(np.float32)
            yield from (block * factor for _, block in summed())
            return
        for begin, block in summed():
            own = magnitudes[begin : begin + len(block)] / np.linalg.norm(block, axis=1)
            yield block * own[:, None]


@dataclass(frozen=True)
class Ia3Scaling:
    """IA3: each row or column times a number."""

    by: NamedTensor
    shape: tuple[int, ...]
    """Shape of the weight."""
    by_row: bool

    def rows(self, reader: ElementReader, weight: _Rows) -> Iterator[Any]:
        """Yield the changed weight block by block."""
        by = matrix(reader, self.by).reshape(-1)
        for begin, block in weight():
            yield block * (by[begin : begin + len(block), None] if self.by_row else by)


def apply_delta(
    reader: ElementReader, change: LoraDelta | Ia3Scaling, source: NamedTensor, dtype: str
) -> Iterator[Block]:
    """The blocks of a weight with the adapter merged, in the type `dtype`."""
    import numpy as np

    rows, columns = source.shape[0], source.numel // source.shape[0]
    widen, narrow = converter(source.dtype, "float32"), converter("float32", dtype)
    step = max(1, BLOCK_ELEMENTS // columns)

    def weight() -> Iterator[tuple[int, Any]]:
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            (block,) = map(widen, reader.blocks(source.cut(begin * columns, end * columns)))
            yield begin, block.view(np.float32).reshape(end - begin, columns)

    for block in change.rows(reader, weight):
        yield narrow(np.ascontiguousarray(block, np.float32).view(np.uint8).reshape(-1))


def matrix(reader: ElementReader, tensor: NamedTensor) -> Any:
    """A small tensor in float32."""
    import numpy as np

    widen = converter(tensor.dtype, "float32")
    parts = [widen(block).view(np.float32).copy() for block in reader.blocks(tensor)]
    return np.concatenate([np.empty(0, np.float32), *parts]).reshape(tensor.shape)

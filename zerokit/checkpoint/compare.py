"""Compares the tensors of two checkpoints or models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.element_reader import CONVERTIBLE, ElementReader, converter, difference
from zerokit.checkpoint.safetensors_file import read_safetensors
from zerokit.checkpoint.source import weight_files
from zerokit.checkpoint.step_folder import has_step_folder
from zerokit.checkpoint.tensors import NamedTensor
from zerokit.documents import is_folder
from zerokit.errors import CheckpointError, ModelError, printable


@dataclass(frozen=True)
class Difference:
    """A difference in one tensor."""

    name: str
    what: str
    """``only in A``, ``only in B``, ``shape``, ``type`` or ``elements``."""
    num_elements: int = 0
    """Number of different elements, in the type with fewer bits."""
    largest: float | None = None
    """Largest difference of two elements; None if it is not a number."""


def compare(left: Path, right: Path) -> Iterator[Difference]:
    """Yield the differences in order of names.

    Tensors of two floating-point types are compared in the type with fewer bits: a bf16 model equals the
    float32 weights from which it was rounded.

    Raises:
        CheckpointError: one of them is neither, or is damaged.
    """
    first, second = _tensors(left), _tensors(right)
    with ElementReader() as reader:
        for name in sorted({*first, *second}):
            if name not in first or name not in second:
                yield Difference(name, "only in A" if name in first else "only in B")
            elif first[name].shape != second[name].shape:
                yield Difference(name, "shape")
            elif (found := _difference(reader, first[name], second[name])) is not None:
                yield found
        reader.finish()


def _difference(reader: ElementReader, left: NamedTensor, right: NamedTensor) -> Difference | None:
    dtype = left.dtype
    if left.dtype != right.dtype:
        if not {left.dtype, right.dtype} <= set(CONVERTIBLE):
            return Difference(left.name, "type")
        dtype = max(left.dtype, right.dtype, key=CONVERTIBLE.index)
    count, largest = 0, 0.0
    of_both = (map(converter(one.dtype, dtype), reader.blocks(one)) for one in (left, right))
    for first, second in zip(*of_both, strict=True):
        differing, at_most = difference(first, second, dtype)
        count, largest = count + differing, max(largest, at_most)
    finite = largest if largest < float("inf") else None
    return Difference(left.name, "elements", count, finite) if count else None


def _tensors(path: Path) -> Mapping[str, NamedTensor]:
    if not is_folder(path):
        raise CheckpointError("no such folder", where=path, hint="Name a checkpoint or a model")
    if has_step_folder(path):
        return read_checkpoint(path).tensors()
    try:
        return {
            name: tensor
            for file in weight_files(path, where=printable(path))
            for name, tensor in read_safetensors(file).items()
        }
    except ModelError as error:
        raise CheckpointError(error.message, where=error.where, hint=error.hint) from None

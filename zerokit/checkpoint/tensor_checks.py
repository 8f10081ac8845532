"""Checks that elements of a checkpoint are unchanged, and equal wherever they are saved twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zerokit.checkpoint.element_reader import CONVERTIBLE, Block, ElementReader, converter, is_finite
from zerokit.errors import CheckpointError

if TYPE_CHECKING:
    from zerokit.checkpoint.deepspeed_folder import DeepSpeedCheckpoint
    from zerokit.checkpoint.tensors import NamedTensor


@dataclass(frozen=True)
class TensorIssues:
    """Tensors that are valid but worth a remark, by name."""

    not_finite: list[str] = field(default_factory=list)
    """With infinite or NaN elements."""
    differing: list[str] = field(default_factory=list)
    """Buffers that differ between ranks, such as running means: nothing synchronises them."""


def checked_blocks(
    reader: ElementReader, checkpoint: DeepSpeedCheckpoint, tensor: NamedTensor, remarks: TensorIssues
) -> Iterator[Block]:
    """Yield the elements of a tensor, and compare them with all copies that must be equal.

    After each step the optimizer copies its master weights to the model, rounded to its type. So they differ
    only if files are of different steps or ranks.

    Args:
        reader: reads them; call its ``finish`` afterwards.
        remarks: gets the tensor's name.

    Raises:
        CheckpointError: two copies that the optimizer keeps equal differ.
    """
    own = checkpoint.copies_of(tensor.name)
    copies = [copy for copy in own if (copy.shape, copy.dtype) == (tensor.shape, tensor.dtype)]
    not_finite, differing = False, len(copies) < len(own)
    weight = checkpoint.weights.get(tensor.name)
    if weight is not None and weight != tensor and {weight.dtype, tensor.dtype} <= set(CONVERTIBLE):
        copies.append(weight)
    others = [(reader.blocks(copy), converter(tensor.dtype, copy.dtype), copy) for copy in copies]
    for block in reader.blocks(tensor):
        finite = is_finite(block, tensor.dtype)
        not_finite |= not finite
        for blocks, convert, copy in others:
            # There are many NaNs.
            if (next(blocks) != convert(block)).any() and finite:
                if copy is weight:
                    _refuse(tensor, copy)
                differing = True
        yield block
    remarks.not_finite.extend([tensor.name] * not_finite)
    remarks.differing.extend([tensor.name] * differing)


def _refuse(tensor: NamedTensor, copy: NamedTensor) -> None:
    first, second = tensor.pieces[0].storage.file, copy.pieces[0].storage.file
    raise CheckpointError(
        f"has another '{tensor.name}' than {first.name}: they are of different steps, ranks or runs",
        where=second,
        hint="Use another checkpoint; 'zerokit checkpoint export' uses the master weights unchecked with --no-verify",
    )

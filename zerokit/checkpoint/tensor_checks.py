"""Whether the elements of a checkpoint are as they were saved, and the same wherever they are twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zerokit.checkpoint.element_reader import CONVERTIBLE, converter, is_finite
from zerokit.documents import shown
from zerokit.errors import CheckpointError

if TYPE_CHECKING:
    from zerokit.checkpoint.deepspeed_folder import DeepSpeedCheckpoint
    from zerokit.checkpoint.element_reader import Block, ElementReader
    from zerokit.checkpoint.tensors import NamedTensor


@dataclass(frozen=True)
class TensorIssues:
    """What is worth a word of elements that are sound, by the names of tensors."""

    not_finite: list[str] = field(default_factory=list)
    """With elements that are infinite or NaN."""
    differing: list[str] = field(default_factory=list)
    """Buffers that each rank has its own of, such as means of batches: nothing keeps them alike."""


def checked_blocks(
    reader: ElementReader, checkpoint: DeepSpeedCheckpoint, tensor: NamedTensor, remarks: TensorIssues
) -> Iterator[Block]:
    """The elements of a tensor of the checkpoint, compared on the way with all that is to be the same.

    After each step the optimizer copies its weights into the model's, rounded to their type; so they differ
    only if the files are not of one step, or a rank's file is another rank's.

    Args:
        reader: reads them; its ``finish`` says the rest.
        checkpoint: that has it.
        tensor: one of its ``tensors()``.
        remarks: get the tensor's name.

    Raises:
        CheckpointError: two places differ that the optimizer keeps alike.
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
            # Of NaN there are many.
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
        where=shown(second),
        hint="Take another checkpoint; 'zerokit checkpoint export' takes the optimizer's weights as they are "
        "with --no-verify",
    )

"""Tensors that tensor-parallel ranks have in parts are put together as they were, however they were cut."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from zerokit.checkpoint.element_reader import ElementReader
from zerokit.checkpoint.model_parallel import TensorParallelCuts, join_ranks
from zerokit.checkpoint.tensors import NamedTensor, whole_tensor
from zerokit.checkpoint.torch_file import read_archive
from zerokit.errors import CheckpointError

pytestmark = pytest.mark.torch
NAME = "layers.0.weight"
PATTERN = f"^{re.escape(NAME)}$"
WEIGHT = torch.arange(48.0).reshape(8, 6)


def parts(folder: Path, *tensors: torch.Tensor) -> list[NamedTensor]:
    """Saved each in a file of its own."""
    for rank, tensor in enumerate(tensors):
        torch.save(tensor.clone(), folder / f"{rank}.pt")
    return [whole_tensor(NAME, read_archive(folder / f"{rank}.pt").content) for rank in range(len(tensors))]


def elements(tensor: NamedTensor) -> torch.Tensor:
    with ElementReader() as reader:
        content = b"".join(bytes(block) for block in reader.blocks(tensor))
        reader.finish()
    return torch.frombuffer(bytearray(content), dtype=torch.float32).view(tensor.shape)


def piece(shape: list[int], source: list[Any], dest: list[Any], **more: Any) -> dict[str, Any]:
    return {"shape": shape, "source": source, "dest": dest, "locations": [0], **more}


def mapped(*ranks: list[dict[str, Any]], shard: list[int], shape: tuple[int, ...] = (8, 6)) -> dict[str, Any]:
    entry = {
        "logical_shape": list(shape),
        "ranks": {rank: {"shard_shape": shard, "pieces": of} for rank, of in enumerate(ranks)},
    }
    return {"affine_map": {"version": 1, "params": {PATTERN: entry}}}


@pytest.mark.parametrize(
    ("info", "cut"),
    [
        ({}, WEIGHT.chunk(2)),
        ({}, WEIGHT.split([5, 3])),
        ({"parameter_with_row_parallelism_patterns": [PATTERN]}, WEIGHT.chunk(3, 1)),
        ({"parameter_with_row_parallelism_patterns": [PATTERN]}, WEIGHT.split([1, 5], 1)),
        ({"tp_replicated_parameter_patterns": [PATTERN]}, [WEIGHT, WEIGHT]),
        (
            {"vocabulary_parameter_patterns": [PATTERN], "original_vocab_size": 8},
            torch.cat([WEIGHT, torch.zeros(2, 6)]).chunk(2),
        ),
        (
            mapped(
                [piece([8, 2], [0, [6, 1]], [0, [3, 1]]), piece([8, 1], [5, [6, 1]], [2, [3, 1]])],
                [piece([8, 3], [2, [6, 1]], [0, [3, 1]])],
                shard=[8, 3],
            ),
            [WEIGHT[:, [0, 1, 5]], WEIGHT[:, 2:5]],
        ),
        (
            mapped(*[[piece([8, 6], [0, [6, 1]], [0, [6, 1]], scale=0.5)] for _ in range(2)], shard=[8, 6]),
            [WEIGHT / 2, WEIGHT / 2],
        ),
    ],
)
def test_a_tensor_is_what_it_was(info: dict[str, Any], cut: list[torch.Tensor], tmp_path: Path) -> None:
    tensor, copies = TensorParallelCuts(info, []).joined(NAME, parts(tmp_path, *cut))
    assert torch.equal(elements(tensor), WEIGHT)
    assert all(torch.equal(elements(copy), WEIGHT) for copy in copies)
    assert len(copies) == (len(cut) - 1 if cut[0].shape == WEIGHT.shape else 0)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (None, "does not describe how 2 tensor-parallel ranks have divided"),
        ({"parameter_to_average_patterns": [PATTERN]}, "of an unsupported kind"),
        ({"parameter_with_2_sub_params_cat_dim_0": [PATTERN]}, "of an unsupported kind"),
        ({"parameter_with_sub_params": [{"patterns": [PATTERN]}]}, "of an unsupported kind"),
        (mapped([piece([4, 6], [0, [6, 1]], [0, [6, 1]])], [], shard=[4, 6]), "do not fit together"),
        (mapped([piece([4, 6], [0, [6, 1]], [90, [6, 1]])], [], shard=[4, 6]), "do not fit together"),
        (mapped([piece([4, 6], [0, [6, 1]], [-24, [6, 1]])], [], shard=[4, 6]), "do not fit together"),
        (mapped([], [], shard=[3, 6]), "of another shape than its map says"),
        ({"parameter_with_row_parallelism_patterns": [r"^layers\.\d+\.weight$"]}, "which is more than a name"),
        ({"parameter_with_sub_params": [{"patterns": ["layers.*"]}]}, "which is more than a name"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(info: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, ValueError), match=message):
        elements(TensorParallelCuts(info, []).joined(NAME, parts(tmp_path, *WEIGHT.chunk(2)))[0])


def test_a_tensor_that_one_rank_lacks_is_named_whichever_that_is(tmp_path: Path) -> None:
    (tensor,) = parts(tmp_path, WEIGHT)
    for ranks in ([{NAME: tensor}, {}], [{}, {NAME: tensor}]):
        with pytest.raises(CheckpointError, match=f"has '{NAME}', which other tensor-parallel ranks lack"):
            join_ranks(ranks, 2, TensorParallelCuts({}, []))


def test_a_map_of_more_elements_than_a_part_has_is_refused_before_it_is_followed(tmp_path: Path) -> None:
    info = mapped([piece([1 << 40, 6], [0, [6, 1]], [0, [6, 1]], scale=1.0)], [], shard=[4, 6])
    with pytest.raises(ValueError, match="of more elements than it has"):
        TensorParallelCuts(info, []).joined(NAME, parts(tmp_path, *WEIGHT.chunk(2)))

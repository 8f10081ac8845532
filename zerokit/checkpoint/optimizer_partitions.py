"""Partitions the optimizer's groups as DeepSpeed does at the start of a run."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from zerokit.checkpoint.optimizer_groups import ALIGNMENT, Group, round_robin_order
from zerokit.checkpoint.tensors import NamedTensor, whole_tensor
from zerokit.checkpoint.torch_file import ITEMSIZES, Record, Size, StoredTensor, record
from zerokit.checkpoint.torch_file_writer import NewTensor

_PARAMETER_ALIGNMENT = 16
"""Bytes to which each parameter is aligned with `parameter_alignment`."""


class Stage1And2Partitions:
    """Stages 1 and 2: the flat buffer of each group, cut into a part per rank.

    Source: `DeepSpeedZeroOptimizer.__init__`, runtime/zero/stage_1_and_2.py.
    """

    def __init__(self, groups: Sequence[Group], num_ranks: int, *, round_robin: bool, aligned_as: str | None) -> None:
        """Lay out the groups."""
        self.groups = groups
        self.num_ranks = num_ranks
        self.orders = [
            round_robin_order(list(one.weights), num_ranks) if round_robin else list(one.weights) for one in groups
        ]
        alignment = _PARAMETER_ALIGNMENT // ITEMSIZES[aligned_as] if aligned_as else 1
        self.paddings = [list(_paddings(one, order, alignment)) for one, order in self._ordered()]
        self.lengths = [
            sum(one.weights[name].numel for name in order) + sum(padding)
            for (one, order), padding in zip(self._ordered(), self.paddings, strict=True)
        ]
        """Elements of each group, without padding to equal parts."""
        multiple = ALIGNMENT * num_ranks
        self.sizes = [math.ceil(length / multiple) * ALIGNMENT for length in self.lengths]
        """Elements of a rank's part of each group."""

    @property
    def shapes(self) -> list[OrderedDict[str, Size]]:
        """Shapes of the parameters in buffer order."""
        return [_shapes(*one) for one in self._ordered()]

    def part_paddings(self, rank: int) -> list[int]:
        """Padding at the end of a rank's parts."""
        return [
            max(0, min(size, (rank + 1) * size - length))
            for size, length in zip(self.sizes, self.lengths, strict=True)
        ]

    def weights(self, rank: int, *, padded: bool) -> list[NewTensor]:
        """A rank's part of each group; `padded`: with the padding at its end."""
        cut = [0] * len(self.groups) if padded else self.part_paddings(rank)
        return [self._part(number, one.weights, rank, without=cut[number]) for number, one in enumerate(self.groups)]

    def states(self, rank: int) -> list[dict[str, Any]]:
        """Optimizer states of a rank's part of each group."""
        return [
            _others(one) | {key: self._part(number, of, rank) for key, of in one.moments.items()}
            for number, one in enumerate(self.groups)
        ]

    def slices(self, rank: int) -> list[OrderedDict[str, Record]]:
        """Where each parameter is in a rank's parts, as in ``param_slice_mappings``."""
        return [OrderedDict(self._slices(number, rank)) for number in range(len(self.groups))]

    def _slices(self, number: int, rank: int) -> Iterator[tuple[str, Record]]:
        tensors = self.groups[number].weights
        begin, size = rank * self.sizes[number], self.sizes[number]
        padded = any(self.paddings[number])
        # With round-robin and without alignment, DeepSpeed itself uses the other order here.
        order = self.orders[number] if padded else list(tensors)
        ends = list(
            accumulate(tensors[name].numel + behind for name, behind in zip(order, self.paddings[number], strict=True))
        )
        offsets = dict(zip(order, [0, *ends], strict=False))
        for name, tensor in tensors.items():
            first, last = max(offsets[name], begin), min(offsets[name] + tensor.numel, begin + size)
            if first < last:
                address = {"numel": last - first, "start": first - begin}
                yield name, record("deepspeed.utils.tensor_fragment.fragment_address", state=address)

    def _ordered(self) -> Iterator[tuple[Group, list[str]]]:
        return zip(self.groups, self.orders, strict=True)

    def _part(self, number: int, tensors: Mapping[str, NamedTensor], rank: int, *, without: int = 0) -> NewTensor:
        size = self.sizes[number]
        names, paddings = self.orders[number], self.paddings[number]
        row = [part for name, padding in zip(names, paddings, strict=True) for part in (tensors[name], padding)]
        row.append(size * self.num_ranks - self.lengths[number])
        return _assembled(_cut(row, rank * size, (rank + 1) * size - without), tensors[names[0]].dtype)


class Stage3Partitions:
    """Stage 3: each parameter is partitioned by itself; a rank's shards are grouped by size.

    Source: `_create_fp16_sub_groups` in runtime/zero/stage3.py, `_partition_param` in
    partition_parameters.py.
    """

    def __init__(self, groups: Sequence[Group], num_ranks: int, sub_group_size: float) -> None:
        self.num_ranks = num_ranks
        self.flats: list[tuple[Group, list[str]]] = []
        """Group and names of each flat part of a rank."""
        self.numbers: list[list[int]] = []
        """For each group, the numbers of its flat parts."""
        for group in groups:
            cut = list(self._sub_groups(group, sub_group_size))
            self.numbers.append(list(range(len(self.flats), len(self.flats) + len(cut))))
            self.flats += [(group, names) for names in cut]

    @property
    def shapes(self) -> list[OrderedDict[str, Size]]:
        """Shapes of the parameters in order."""
        return [_shapes(*one) for one in self.flats]

    def weights(self, rank: int) -> list[NewTensor]:
        """A rank's flat parts."""
        return [self._part(group.weights, names, rank) for group, names in self.flats]

    def states(self, rank: int) -> list[dict[str, Any]]:
        """Optimizer states of a rank's flat parts."""
        return [
            _others(group) | {key: self._part(of, names, rank) for key, of in group.moments.items()}
            for group, names in self.flats
        ]

    def parameter(self, tensor: NamedTensor, rank: int) -> NewTensor:
        """A rank's shard of a parameter."""
        return _assembled(self._divided(tensor, rank), tensor.dtype)

    def _part(self, tensors: Mapping[str, NamedTensor], names: Sequence[str], rank: int) -> NewTensor:
        parts = [part for name in names for part in self._divided(tensors[name], rank)]
        return _assembled(parts, tensors[names[0]].dtype)

    def _divided(self, tensor: NamedTensor, rank: int) -> list[NamedTensor | int]:
        each = math.ceil(tensor.numel / self.num_ranks)
        return _cut([tensor, each * self.num_ranks - tensor.numel], rank * each, (rank + 1) * each)

    def _sub_groups(self, group: Group, size: float) -> Iterator[list[str]]:
        names: list[str] = []
        numel = 0
        for name, tensor in group.weights.items():
            names.append(name)
            numel += math.ceil(tensor.numel / self.num_ranks)
            if numel >= size:
                yield names
                names, numel = [], 0
        if names:
            yield names


def _others(group: Group) -> dict[str, Any]:
    """States that exist once, such as ``step``: each part gets its own copy."""
    return {
        key: NewTensor(value.dtype, value.shape, (whole_tensor(key, value),))
        if isinstance(value, StoredTensor)
        else value
        for key, value in group.others.items()
    }


def _shapes(group: Group, names: Sequence[str]) -> OrderedDict[str, Size]:
    return OrderedDict((name, Size(group.weights[name].shape)) for name in names)


def _paddings(group: Group, order: Sequence[str], alignment: int) -> Iterator[int]:
    """Padding after each parameter; none after the last."""
    offset = 0
    for place, name in enumerate(order, start=1):
        offset += group.weights[name].numel
        padding = -offset % alignment if place < len(order) else 0
        offset += padding
        yield padding


def _cut(row: Sequence[NamedTensor | int], begin: int, end: int) -> list[NamedTensor | int]:
    """The elements of a row of tensors and zeros from `begin` to before `end`."""
    found: list[NamedTensor | int] = []
    at = 0
    for part in row:
        numel = part if isinstance(part, int) else part.numel
        first, last = max(begin - at, 0), min(end - at, numel)
        if first < last:
            found.append(last - first if isinstance(part, int) else part.cut(first, last))
        at += numel
    return found


def _assembled(parts: Sequence[NamedTensor | int], dtype: str) -> NewTensor:
    numel = sum(part if isinstance(part, int) else part.numel for part in parts)
    return NewTensor(dtype, (numel,), tuple(parts))

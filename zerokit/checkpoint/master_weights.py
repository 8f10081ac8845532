"""The weights that ZeRO's optimizer keeps, mostly in float32, put together from the parts of all ranks.

What ranks hold is flat: one parameter after the other, in an order that the model states tell. Under stages 1
and 2 the parts are cut from the whole (runtime/zero/stage_1_and_2.py), under stage 3 every parameter is cut
by itself (partition_parameters.py, `_partition_param`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerokit.checkpoint.tensors import FlatTensors, NamedTensor, Piece
from zerokit.checkpoint.torch_file import StoredTensor

Shapes = Sequence[Mapping[str, tuple[int, ...]]]
"""Of each group of parameters, their shapes by name, in order."""

_EXPERT = re.compile(r"(?P<mixture>.*\.deepspeed_experts\.)(?P<number>\d+)(?P<rest>\..*)")


def master_weights_stage_1_2(shapes: Shapes, states: Sequence[Mapping[str, Any]]) -> Iterator[NamedTensor]:
    """The weights of each group.

    Args:
        shapes: as rank 0 has them.
        states: of the optimizer, of each rank.

    Raises:
        CheckpointError: the parts do not fit the shapes.
    """
    paddings = states[0].get("param_alignment_paddings")
    counts = states[0]["partition_count"]
    for group, parameters in enumerate(shapes):
        parts = [state["single_partition_of_fp32_groups"][group] for state in states]
        between = paddings[group] if paddings else [0] * len(parameters)
        count = counts[group] if isinstance(counts, list) else counts
        num_experts = _num_experts(parameters)
        # Experts lie on fewer ranks than other parameters: rank r has those of place r modulo `places`.
        places = len(states) // count
        for place in range(places):
            flat = FlatTensors(parts[place::places])
            offset = 0
            for (name, shape), padding in zip(parameters.items(), between, strict=True):
                yield flat.tensor(
                    _global_name(name, place, num_experts) if places > 1 else name, shape, offset
                )
                offset += math.prod(shape) + int(padding)
            flat.check_end(offset, 2 * count)


def _num_experts(names: Iterable[str]) -> dict[str, int]:
    """Of each mixture, how many experts of it parameters are of."""
    numbers: dict[str, set[str]] = {}
    for found in filter(None, map(_EXPERT.fullmatch, names)):
        numbers.setdefault(found["mixture"], set()).add(found["number"])
    return {mixture: len(of) for mixture, of in numbers.items()}


def _global_name(name: str, place: int, num_experts: Mapping[str, int]) -> str:
    """The name of an expert's parameter among the experts of all places; each counts its own from 0."""
    found = _EXPERT.fullmatch(name)
    if found is None:
        return name
    number = place * num_experts[found["mixture"]] + int(found["number"])
    return f"{found['mixture']}{number}{found['rest']}"


def master_weights_stage_3(shapes: Shapes, states: Sequence[Mapping[str, Any]]) -> Iterator[NamedTensor]:
    """As :func:`master_weights_stage_1_2`; each parameter is at the same place in the part of every rank."""
    flats = [FlatTensors(_listed(state["fp32_flat_groups"])) for state in states]
    offset = 0
    for parameters in shapes:
        for name, shape in parameters.items():
            each = math.ceil(math.prod(shape) / len(flats))
            pieces = [piece for flat in flats for piece in flat.pieces(offset, each, name)]
            yield NamedTensor(
                name, flats[0].dtype, tuple(shape), tuple(_without_padding(pieces, math.prod(shape)))
            )
            offset += each
    for flat in flats:
        flat.check_end(offset, 1)


def _without_padding(pieces: Sequence[Piece], numel: int) -> Iterator[Piece]:
    left = numel
    for piece in pieces:
        if not left:
            return
        yield piece if piece.numel <= left else replace(piece, numel=left)
        left -= min(left, piece.numel)


def _listed(groups: Any) -> list[StoredTensor]:
    return [groups] if isinstance(groups, StoredTensor) else list(groups)

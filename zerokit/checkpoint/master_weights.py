"""Master weights of ZeRO's optimizer, joined from the parts of all ranks.

The parts are flat; model states have the order of parameters. Stages 1 and 2 partition the flat buffer
(runtime/zero/stage_1_and_2.py), stage 3 partitions each parameter (partition_parameters.py,
`_partition_param`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerokit.checkpoint.tensors import FlatTensors, NamedTensor, Piece
from zerokit.checkpoint.torch_file import StoredTensor

Shapes = Sequence[Mapping[str, tuple[int, ...]]]
"""For each parameter group, shapes by name in order."""

_EXPERT = re.compile(r"(?P<mixture>.*\.deepspeed_experts\.)(?P<number>\d+)(?P<rest>\..*)")


def master_weights_stage_1_2(shapes: Shapes, states: Sequence[Mapping[str, Any]]) -> Iterator[NamedTensor]:
    """The master weights of stages 1 and 2. CheckpointError if the parts do not fit the shapes."""
    paddings = states[0].get("param_alignment_paddings")
    counts = states[0]["partition_count"]
    for group, parameters in enumerate(shapes):
        parts = [state["single_partition_of_fp32_groups"][group] for state in states]
        between = paddings[group] if paddings else [0] * len(parameters)
        count = counts[group] if isinstance(counts, list) else counts
        num_experts = _num_experts(parameters)
        # Experts are on fewer ranks than other parameters: rank r has the experts of place r modulo `places`.
        places = len(states) // count
        for place in range(places):
            flat = FlatTensors(parts[place::places])
            offset = 0
            for (name, shape), padding in zip(parameters.items(), between, strict=True):
                yield flat.tensor(_global_name(name, place, num_experts) if places > 1 else name, shape, offset)
                offset += math.prod(shape) + int(padding)
            flat.check_end(offset, 2 * count)


def _num_experts(names: Iterable[str]) -> dict[str, int]:
    """The number of experts of each mixture."""
    numbers: dict[str, set[str]] = {}
    for found in filter(None, map(_EXPERT.fullmatch, names)):
        numbers.setdefault(found["mixture"], set()).add(found["number"])
    return {mixture: len(of) for mixture, of in numbers.items()}


def _global_name(name: str, place: int, num_experts: Mapping[str, int]) -> str:
    """The name of an expert's parameter with a number among the experts of all ranks."""
    found = _EXPERT.fullmatch(name)
    if found is None:
        return name
    number = place * num_experts[found["mixture"]] + int(found["number"])
    return f"{found['mixture']}{number}{found['rest']}"


def master_weights_stage_3(
    shapes: Shapes,
    states: Sequence[Mapping[str, Any]],
    of_all: Sequence[Mapping[str, Any]] = (),
    replicated: Collection[str] = (),
) -> Iterator[NamedTensor]:
    """The master weights of stage 3; each parameter has the same offset on every rank.

    Args:
        of_all: the states of all ranks, if tensor parallelism divides the model among `states` and others.
        replicated: parameters that it does not divide. If ``zero.Init`` has partitioned them over all ranks,
            the engine keeps that (engine.py, `_resolve_zero3_param_placement`).
    """
    flats = [FlatTensors(_listed(state["fp32_flat_groups"])) for state in states]
    everywhere = [FlatTensors(_listed(state["fp32_flat_groups"])) for state in of_all]
    sizes = (math.ceil(math.prod(shape) / len(flats)) for parameters in shapes for shape in parameters.values())
    if sum(sizes) == flats[0].numel:
        replicated = ()
    offset = 0
    for parameters in shapes:
        for name, shape in parameters.items():
            parts = everywhere if name in replicated else flats
            each = math.ceil(math.prod(shape) / len(parts))
            pieces = [piece for flat in parts for piece in flat.pieces(offset, each, name)]
            yield NamedTensor(name, flats[0].dtype, tuple(shape), tuple(_without_padding(pieces, math.prod(shape))))
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

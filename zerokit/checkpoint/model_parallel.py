"""Joins a model that is divided by tensor parallelism or pipeline parallelism.

DeepSpeed describes tensor-parallel cuts in ``universal_checkpoint_info``: by an affine map per tensor
(checkpoint/affine.py), or by lists of names, which are written as patterns (checkpoint/constants.py).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, product
from typing import Any, NamedTuple, NoReturn

from zerokit.checkpoint.step_folder import CONVERT
from zerokit.checkpoint.tensors import NamedTensor, Piece, PieceRow
from zerokit.checkpoint.torch_file import ITEMSIZES
from zerokit.errors import CheckpointError

Tensors = Mapping[str, NamedTensor]
_REPLICATED = "tp_replicated_parameter_patterns"
_ROWS = "parameter_with_row_parallelism_patterns"
_VOCABULARY = "vocabulary_parameter_patterns"
_VOCABULARY_SIZE = "original_vocab_size"
_NOT_JOINED = (
    "parameter_to_average_patterns",
    "autotp_unsupported_parameter_patterns",
    "parameter_with_2_sub_params_cat_dim_0",
)
_PATTERNS = (_REPLICATED, _ROWS, _VOCABULARY, *_NOT_JOINED)


class _Run(NamedTuple):
    """Elements that are contiguous in the tensor and in a rank's part."""

    begin: int
    """Offset in the tensor."""
    rank: int
    offset: int
    """Offset in the part."""
    numel: int


class _Runs(Sequence[Piece]):
    """Lazy pieces of a tensor: one that is cut by columns has a piece per row."""

    def __init__(self, name: str, parts: Sequence[NamedTensor], numel: int, runs: Callable[[], Iterator[_Run]]):
        self._name = name
        self._parts = parts
        self._numel = numel
        self._runs = runs

    def __iter__(self) -> Iterator[Piece]:
        rows = [PieceRow(part.pieces, ITEMSIZES[part.dtype]) for part in self._parts]
        at = 0
        for run in self._runs():
            if run.begin + run.numel <= at:
                continue  # another rank has it, too
            if run.begin != at or run.offset < 0 or run.offset + run.numel > self._parts[run.rank].numel:
                break
            count = min(run.numel, self._numel - at)
            yield from rows[run.rank].cut(run.offset, run.offset + count)
            at += count
        if at < self._numel:
            _refuse(self._parts[0], f"has parts of '{self._name}' that do not fit together")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return next(islice(self, index, None)) if isinstance(index, int) else tuple(self)[index]


class TensorParallelCuts:
    def __init__(self, info: Any, buffers: Sequence[str]) -> None:
        """Read the description of a checkpoint.

        Args:
            buffers: names of tensors that every rank has whole.
        """
        self._info: Mapping[str, Any] | None = info if isinstance(info, Mapping) else None
        self._maps = ((self._info or {}).get("affine_map") or {}).get("params") or {}
        self._buffers = frozenset(buffers)

    def joined(self, name: str, parts: Sequence[NamedTensor]) -> tuple[NamedTensor, list[NamedTensor]]:
        """The joined tensor, and other ranks' copies if every rank has it whole.

        Raises:
            CheckpointError: the cut is unknown or unsupported.
            ArithmeticError, LookupError, TypeError, ValueError, AttributeError: see
                :func:`explain_format_errors`.
        """
        first = parts[0]
        if len(parts) == 1:
            return first, []
        found = self._maps.get(_literal(name))
        is_replicated = name in self._buffers or self._is(_REPLICATED, first)
        # Stage 3 describes a parameter that zero.Init has partitioned as empty.
        if found is not None and not (is_replicated and 0 in found["logical_shape"]):
            return _by_map(name, parts, found)
        if is_replicated:
            return first, list(parts[1:])
        if self._info is None:
            _refuse(
                first,
                f"does not describe how {len(parts):,} tensor-parallel ranks have divided '{name}'",
                "Load it on the same number of ranks; engine.save_16bit_model() then gathers tensors",
            )
        if self._unclear is not None:
            _refuse(first, f"divides tensors by the pattern '{self._unclear[:80]}', which is more than a name")
        if _literal(name) in self._in_sub_parts or any(self._is(key, first) for key in _NOT_JOINED):
            _refuse(first, f"has '{name}' in tensor-parallel parts of an unsupported kind")
        whole = _by_axis(name, parts, 1 if self._is(_ROWS, first) else 0)
        rows = self._info.get(_VOCABULARY_SIZE)
        if isinstance(rows, int) and 0 < rows < whole.shape[0] and self._is(_VOCABULARY, first):
            shape = (rows, *whole.shape[1:])  # the rest pads it
            whole = replace(whole, shape=shape, pieces=whole.cut(0, math.prod(shape)).pieces)
        return whole, []

    @cached_property
    def _in_sub_parts(self) -> frozenset[str]:
        """Patterns of tensors that consist of several, each of which is divided."""
        return frozenset(chain(*(one["patterns"] for one in (self._info or {}).get("parameter_with_sub_params", ()))))

    @cached_property
    def _unclear(self) -> str | None:
        """A pattern that may match more than one name."""
        listed = chain(self._in_sub_parts, *((self._info or {}).get(key, ()) for key in _PATTERNS))
        return next((pattern for pattern in listed if not _is_literal(pattern)), None)

    def _is(self, key: str, tensor: NamedTensor) -> bool:
        return _literal(tensor.name) in (self._info or {}).get(key, ())


def replicated_names(info: Any, names: Iterable[str]) -> set[str]:
    """The names that AutoTP describes as whole on every rank."""
    patterns = info.get(_REPLICATED, ()) if isinstance(info, Mapping) else ()
    return {name for name in names if _literal(name) in patterns}


def _literal(name: str) -> str:
    """The pattern that matches this name only."""
    return f"^{re.escape(name)}$"


def _is_literal(pattern: str) -> bool:
    return pattern == _literal(re.sub(r"\\(\W)", r"\1", pattern[1:-1]))


def join_ranks(
    found: Sequence[Tensors], tensor_parallel: int, cuts: TensorParallelCuts
) -> tuple[dict[str, NamedTensor], list[tuple[NamedTensor, NamedTensor]]]:
    """The tensors of a model, and pairs that should be equal.

    Args:
        found: tensors of each model-parallel rank, in order of `StepFolder.model_rank`.
        tensor_parallel: number of consecutive ranks that divide the same tensors.
    """
    whole: dict[str, NamedTensor] = {}
    pairs = []
    for begin in range(0, len(found), tensor_parallel):
        stage = found[begin : begin + tensor_parallel]
        everything = {name: one for rank in stage for name, one in rank.items()}
        for name in [*stage[0], *(everything.keys() - stage[0].keys())]:
            if any(name not in one for one in stage):
                _refuse(everything[name], f"has '{name}', which other tensor-parallel ranks lack")
            tensor, copies = cuts.joined(name, [one[name] for one in stage])
            # Each pipeline stage with a tied weight has a copy of it.
            copies += [tensor] if name in whole else []
            whole.setdefault(name, tensor)
            pairs += [(whole[name], copy) for copy in copies]
    return whole, pairs


def tied_layer_names(weights: Tensors, masters: Tensors) -> dict[str, str]:
    """Map names of a pipeline's tied layers to the names in its optimizer.

    Layers are saved by number, tied ones once; PipelineModule calls them ``tied_modules.KEY.NAME``
    (runtime/pipe/module.py).
    """
    ties: dict[str, dict[str, NamedTensor]] = {}
    for name, tensor in masters.items():
        if name.startswith("tied_modules."):
            _, key, rest = name.split(".", 2)
            ties.setdefault(key, {})[rest] = tensor
    layers: dict[str, dict[str, NamedTensor]] = {}
    for name, tensor in weights.items():
        number, _, rest = name.partition(".")
        layers.setdefault(number, {})[rest] = tensor
    names: dict[str, str] = {}
    for number, layer in layers.items():
        if any(f"{number}.{rest}" in masters for rest in layer):
            continue
        shapes = {rest: one.shape for rest, one in layer.items()}
        same = [key for key, tie in ties.items() if {rest: one.shape for rest, one in tie.items()} == shapes]
        if len(same) == 1:
            names |= {f"{number}.{rest}": f"tied_modules.{same[0]}.{rest}" for rest in layer}
    return names


def _by_axis(name: str, parts: Sequence[NamedTensor], axis: int) -> NamedTensor:
    """Concatenate parts along an axis."""
    shapes = [list(part.shape) for part in parts]
    if len({(*shape[:axis], 0, *shape[axis + 1 :]) for shape in shapes}) > 1 or len(shapes[0]) <= axis:
        _refuse(parts[0], f"has parts of '{name}' that do not fit together")
    shape = (*shapes[0][:axis], sum(one[axis] for one in shapes), *shapes[0][axis + 1 :])
    rows = math.prod(shape[:axis])
    widths = [part.numel // rows if rows else 0 for part in parts]

    def runs() -> Iterator[_Run]:
        begin = 0
        for row in range(rows):
            for rank, width in enumerate(widths):
                yield _Run(begin, rank, row * width, width)
                begin += width

    pieces = _Runs(name, parts, math.prod(shape), runs)
    return NamedTensor(name, parts[0].dtype, shape, pieces)


def _by_map(
    name: str, parts: Sequence[NamedTensor], entry: Mapping[str, Any]
) -> tuple[NamedTensor, list[NamedTensor]]:
    ranks = {int(rank): of for rank, of in entry["ranks"].items()}
    shape = tuple(int(size) for size in entry["logical_shape"])
    if sorted(ranks) != list(range(len(parts))) or min(shape, default=0) < 0:
        raise ValueError(f"a map of '{name}' of {len(ranks)} ranks")
    for rank, part in enumerate(parts):
        if any(math.prod(piece["shape"]) > part.numel for piece in ranks[rank]["pieces"]):
            raise ValueError(f"a map of '{name}' of more elements than it has")
        if part.shape != tuple(ranks[rank]["shard_shape"]):
            _refuse(part, f"has '{name}' of another shape than its map says")
    (scale,) = {float(piece.get("scale", 1.0)) for of in ranks.values() for piece in of["pieces"]}
    factor = 1 / scale
    if parts[0].shape == shape:
        first, *others = (replace(part, factor=factor) for part in parts)
        return first, others

    def runs() -> Iterator[_Run]:
        of_pieces = (_runs_of(rank, piece) for rank, of in ranks.items() for piece in of["pieces"])
        return heapq.merge(*of_pieces)

    pieces = _Runs(name, parts, math.prod(shape), runs)
    return NamedTensor(name, parts[0].dtype, shape, pieces, factor), []


def _runs_of(rank: int, piece: Mapping[str, Any]) -> Iterator[_Run]:
    """The elements of a block as ``torch.as_strided`` addresses them on both sides."""
    sizes = [int(size) for size in piece["shape"]]
    (begin, steps), (offset, own_steps) = piece["source"], piece["dest"]
    numel, axis = 1, len(sizes)
    while axis and (sizes[axis - 1] == 1 or steps[axis - 1] == own_steps[axis - 1] == numel):
        axis -= 1
        numel *= sizes[axis]
    for index in product(*map(range, sizes[:axis])):
        yield _Run(
            begin + sum(map(int.__mul__, index, steps)), rank, offset + sum(map(int.__mul__, index, own_steps)), numel
        )


def _refuse(tensor: NamedTensor, problem: str, hint: str = CONVERT) -> NoReturn:
    raise CheckpointError(problem, where=next(iter(tensor.pieces)).storage.file, hint=hint)

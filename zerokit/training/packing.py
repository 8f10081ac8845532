"""Distributes sequences over rows and micro batches so that there is little padding.

This does not change what a step learns: its loss is a sum over tokens, divided by the tokens of all ranks.
"""

from __future__ import annotations

import ast
import inspect
import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heapreplace
from itertools import pairwise
from math import ceil
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from zerokit.generation import CACHE_NAMES

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, TrainingArguments

_Item = TypeVar("_Item")

Places = list[list[int]]
"""Indices of the sequences of each row, or micro batch."""


def best_fit(lengths: Sequence[int], capacity: int) -> Places:
    """Few rows of at most `capacity` tokens, by best-fit decreasing, in the order of their first sequences.

    Each sequence, longest first, goes into the fullest row with room for it. Needs at most 11/9 of the fewest
    rows and a few more (Johnson et al., "Worst-case performance bounds for simple one-dimensional packing
    algorithms", 1974). O(n log n).
    """
    rows: Places = []
    with_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # its keys, in order: no more than `capacity`
    for index in _longest_first(lengths):
        at = bisect_left(rooms, lengths[index])
        if at == len(rooms):
            row, room = len(rows), capacity
            rows.append([])
        else:
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[at]
        rows[row].append(index)
        if left := room - lengths[index]:
            if left not in with_room:
                insort(rooms, left)
            with_room.setdefault(left, []).append(row)
    return sorted(map(sorted, rows))


def fewest_rows(lengths: Sequence[int], capacity: int) -> Places:
    """The fewest rows of at most `capacity` tokens with about equal lengths, for a micro batch.

    Each sequence, longest first, goes into the emptiest row (longest processing time first: Graham, "Bounds
    on multiprocessing timing anomalies", 1969); rows are added until all are short enough. One row per
    sequence if that takes no more tokens, padding included.
    """
    most = len(lengths) * max(lengths)
    for count in range(ceil(sum(lengths) / capacity), len(lengths)):
        rows = _emptiest(lengths, count)
        longest = max(sum(lengths[index] for index in row) for row in rows)
        if longest <= capacity and count * longest < most:
            return rows
    return [[index] for index in range(len(lengths))]


def rows_for(lengths: Sequence[int], capacity: int | None) -> Places:
    """The rows of a micro batch, of at most `capacity` tokens; None puts all sequences into one."""
    return [list(range(len(lengths)))] if capacity is None else fewest_rows(lengths, capacity)


def even_batches(lengths: Sequence[int], size: int) -> Places:
    """Micro batches of `size` sequences with about as many tokens each, the fullest first."""
    batches = _emptiest(lengths, ceil(len(lengths) / size), most=size)
    return sorted(batches, key=lambda batch: -sum(lengths[index] for index in batch))


def like_batches(lengths: Sequence[int], size: int) -> Places:
    """Micro batches of `size` sequences of similar lengths, the longest first: for a model that pads them."""
    return [list(batch) for batch in _parts(_longest_first(lengths), size)]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


def _emptiest(lengths: Sequence[int], count: int, *, most: int | None = None) -> Places:
    """`count` rows of at most `most` sequences; each sequence goes into the emptiest row."""
    rows: Places = [[] for _ in range(count)]
    emptiest = [(0, row) for row in range(count)]
    for index in _longest_first(lengths):
        tokens, row = emptiest[0]
        rows[row].append(index)
        if len(rows[row]) == most:
            heappop(emptiest)
        else:
            heapreplace(emptiest, (tokens + lengths[index], row))
    return rows


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


@dataclass(frozen=True)
class Layout:
    """How the sequences of an optimizer step are distributed over micro batches."""

    batch_size: int
    """Sequences of a micro batch."""
    step_size: int
    """Sequences of an optimizer step, over all ranks and micro batches."""
    capacity: int | None
    """Most tokens of a row; None puts a whole micro batch into one."""
    multiple: int
    """The length of a row is a multiple of it."""
    in_rows: bool
    """Whether one row may have several sequences, which the model keeps apart."""
    arranges: bool = True
    """False if zerokit must not change the order of micro batches."""

    def arranged(self, order: Sequence[int], lengths: Sequence[int]) -> Iterator[int]:
        """The sequences of each step of `order`, distributed over its micro batches."""
        spread = even_batches if self.in_rows else like_batches
        for step in _parts(order, self.step_size):
            for batch in spread([lengths[index] for index in step], self.batch_size):
                yield from (step[place] for place in batch)

    def padded(self, lengths: Sequence[int]) -> float:
        """The share of padding with one row per sequence, in the original order."""
        return self._padding(_parts(lengths, self.batch_size))

    def left(self, lengths: Sequence[int]) -> float:
        """The remaining share of padding."""
        order: Iterable[int] = range(len(lengths))
        if self.arranges:
            order = self.arranged(range(len(lengths)), lengths)
        batches = _parts([lengths[index] for index in order], self.batch_size)
        if not self.in_rows:
            return self._padding(batches)
        return self._padding(
            [sum(batch[place] for place in row) for row in rows_for(batch, self.capacity)] for batch in batches
        )

    def _padding(self, batches: Iterable[Sequence[int]]) -> float:
        """The share of padding in micro batches, of which `batches` has the tokens of each row."""
        tokens = slots = 0
        for rows in batches:
            tokens += sum(rows)
            slots += len(rows) * row_length(max(rows), self.multiple)
        return 1 - tokens / max(slots, 1)


def can_arrange(args: TrainingArguments) -> bool:
    """Whether zerokit may choose the order of examples and fill up the last batches with blanks."""
    return (
        args.average_tokens_across_devices
        and not args.dataloader_drop_last
        and args.train_sampling_strategy in ("random", "sequential", "group_by_length")
    )


def row_length(tokens: int, multiple: int) -> int:
    """`tokens`, rounded up to a multiple."""
    return -(-tokens // multiple) * multiple


def lengths_of(dataset: Dataset) -> list[int]:
    """Tokens of each sequence."""
    found: list[int] = []
    for batch in dataset.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=1000):
        found += batch["input_ids"].combine_chunks().value_lengths().to_pylist()
    return found


@dataclass(frozen=True)
class Padding:
    """Padding in the rows of a run, as a share."""

    share: float
    share_if_padded: float
    """With one row per document, in the original order."""
    examples_per_step: float
    """Documents of an optimizer step, on average: several lie in a packed sequence."""


_LOOKED_AT = 20_000


def padding_of(train: Dataset, layout: Layout, seed: int) -> Padding:
    """Padding in an epoch, or in a sample of a long one."""
    import numpy

    chance = numpy.random.default_rng(seed)
    train = train.select(chance.permutation(len(train))[:_LOOKED_AT])
    lengths = documents = lengths_of(train)
    if "position_ids" in train.column_names:
        documents = []
        for row in train["position_ids"]:
            starts = document_starts(row)
            documents += [end - start for start, end in pairwise([*starts, len(row)])]
        documents = chance.permutation(documents).tolist()
    return Padding(layout.left(lengths), layout.padded(documents), layout.step_size * len(documents) / len(lengths))


def document_starts(position_ids: Sequence[int]) -> list[int]:
    """Where the documents of a sequence begin: where positions restart at 0."""
    return [at for at, position in enumerate(position_ids) if position == 0]


_MASKS = ("create_causal_mask", "create_sliding_window_causal_mask", "create_masks_for_generate")
_BY_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def packing_unsupported_reason(
    model: Any, config: PretrainedConfig, attention: str | None, seq_len: int, *, one_row: bool = False
) -> str | None:
    """Why documents in one row would see each other; None if the model keeps them apart.

    transformers builds attention masks from positions that restart at 0 (``find_packed_sequence_indices`` in
    masking_utils.py; for flash attention, ``_is_packed_sequence`` in modeling_flash_attention_utils.py), if
    the model's code makes masks there and passes positions on. Recurrent states and convolutions ignore
    positions.

    Args:
        model: its class; None if its code is not part of transformers.
        one_row: whether a row has all tokens of a micro batch, and may be longer than `seq_len`.
    """
    if model is None:
        return "its code comes with the checkpoint"
    text = config.get_text_config(decoder=True)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward() takes no position_ids"
    layers = getattr(text, "layer_types", None) or ()
    if model._is_stateful or not set(layers) <= set(_BY_ATTENTION):
        return "it has layers other than attention, which carry on from token to token"
    if not _masks_by_position(sys.modules[model.__module__]):
        return "its code makes masks without regard to positions"
    if attention not in (None, "eager", "sdpa", "flex_attention") and "flash" not in attention:
        return f"attention by {attention} is not known to tell them apart"
    if getattr(text, "output_router_logits", False):
        return "it balances its experts over a whole row"
    if _turns_by_row(text, seq_len):
        return "its rotary embeddings depend on the longest document in the row"
    # Llama 4 scales the queries of layers without rotary embeddings by places in a row (arXiv:2501.19399).
    without = not all(getattr(text, "no_rope_layers", ()))
    if without and getattr(text, "attn_temperature_tuning", None) and (one_row or seq_len >= text.floor_scale):
        return "its attention's temperature depends on where in a row a token is"
    return None


def _masks_by_position(module: ModuleType) -> bool:
    """Whether all causal masks that a module requests from transformers are made from positions."""
    arguments: list[set[Any]] = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            arguments.append({keyword.arg for keyword in node.keywords})
        elif isinstance(node, ast.Dict):
            arguments.append({key.value for key in node.keys if isinstance(key, ast.Constant)})
    of_masks = [
        names for names in arguments if names >= {"config", "attention_mask"} and not names.isdisjoint(CACHE_NAMES)
    ]
    imported = any(hasattr(module, name) for name in _MASKS)
    return imported and bool(of_masks) and all("position_ids" in names for names in of_masks)


def _turns_by_row(config: Any, seq_len: int) -> bool:
    """Whether the longest sequence of a batch decides the rotary embeddings of all its positions."""
    rope = getattr(config, "rope_parameters", None) or {}
    for rotary in (rope, *(each for each in rope.values() if isinstance(each, dict))):
        kept = rotary.get("original_max_position_embeddings") or config.max_position_embeddings
        if rotary.get("rope_type") in ("longrope", "dynamic") and seq_len > kept:
            return True
    return False

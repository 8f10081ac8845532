"""The stream of a run: made of its recipe, described in its first lines, gone on with from a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.data.streams import ExampleStream
from zerokit.documents import read_document
from zerokit.errors import CheckpointError, DocumentError
from zerokit.files import write_file
from zerokit.training.shapes import described, detect_format
from zerokit.training.streaming import Position, Stream
from zerokit.units import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase

    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved
    from zerokit.training.given import Examples
    from zerokit.training.tasks.task import Task

POSITION_FILE = "zerokit_stream.json"
"""In a checkpoint: where the run was in its data."""


def open_stream(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    loaded: LoadedRecipe,
    resolved: Resolved,
    task: Task,
    resume: Path | None,
) -> Stream | None:
    """The stream that the recipe asks for, if it does, with its first buffer.

    Args:
        examples: to train on.
        tokenizer: of the model.
        loaded: the recipe.
        resolved: its arguments, for the order.
        task: as the model can do it.
        resume: the checkpoint to go on from; None if the run begins.

    Raises:
        DataError: an example of the buffer is unusable, or none has a token to train on.
        CheckpointError: it does not say where in the data its run was.
    """
    source = examples.dataset
    if not isinstance(source, ExampleStream):
        return None
    data, training = loaded.recipe.data, resolved.training
    format_ = detect_format(examples.columns, data, task.formats, where=examples.where)
    order = training.get("train_sampling_strategy", "random")
    seed = training.get("seed", 42) if training.get("data_seed") is None else training["data_seed"]
    stream = Stream(
        source,
        task.encoder(tokenizer, format_, data.columns),
        buffer_size=data.buffer_size,
        max_examples=data.max_examples,
        seed=int(seed) if getattr(order, "value", order) == "random" else None,
        where=examples.where,
        place=examples.place,
        begin=Position() if resume is None else read_position(resume),
    )
    stream.fill_first()
    return stream


def stream_lines(
    stream: Stream,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    loaded: LoadedRecipe,
    task: Task,
) -> Iterator[str]:
    """What is streamed, how it is switched off, and what became of the first buffer, for people."""
    recipe = loaded.recipe
    format_ = detect_format(examples.columns, recipe.data, task.formats, where=examples.where)
    what = described(format_, recipe.data.columns, examples.columns, tokenizer)
    done = ["shuffled"] * (stream.seed is not None) + ["packed"] * (stream.encoder.packed_len is not None)
    with_each_other = f", {' and '.join(done)} with each other" if done else ", and trained on in their order"
    yield (
        f"data: {what}, streamed: {stream.buffer_size:,} examples at a time are read{with_each_other} "
        "(data.buffer_size); data.streaming: false prepares all of them before the first step"
    )
    if recipe.data.eval is None and recipe.data.eval_split is None:
        yield "nothing is held out of streamed data: data.eval names data to evaluate on"
    first = stream.first
    if first is not None and (first.num_cut or first.num_left_out):
        yield (
            f"of the first {quantity(first.num_examples, 'example')}, {first.num_cut:,} cut to "
            f"{recipe.task.seq_len} tokens, {first.num_left_out:,} left out (no token to train on)"
        )


def write_position(position: Position, checkpoint: Path) -> None:
    """Write ``zerokit_stream.json`` into a checkpoint."""
    write_file(checkpoint / POSITION_FILE, json.dumps(asdict(position), indent=2) + "\n")


def read_position(checkpoint: Path) -> Position:
    """Where the run of a checkpoint was in its data.

    Raises:
        CheckpointError: it does not say, or not in a way that can be read.
    """
    file = checkpoint / POSITION_FILE
    if not file.is_file():
        raise CheckpointError(
            f"has no {POSITION_FILE}, which says where in its data to go on",
            where=str(checkpoint),
            hint="Its run did not stream them: remove data.streaming",
        )
    try:
        found = Position(**read_document(file).data)
        numbers = (found.epoch, found.buffer, found.example, found.taken)
        if all(isinstance(one, int) and one >= 0 for one in numbers) and isinstance(found.state, dict | None):
            return found
        reason = "has a number that is none"
    except (DocumentError, TypeError) as error:
        reason = str(error)
    raise CheckpointError(
        f"cannot be read: {reason}", where=str(file), hint="Continue from an earlier checkpoint-N"
    )

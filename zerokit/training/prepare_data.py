"""The steps of a preparation that read examples and turn them into sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit import console
from zerokit.checkpoint.source import read_model_config
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError, RecipeError
from zerokit.recipe import LoadedRecipe
from zerokit.training.datasets import Examples, Places, digest_sources, duplicates_line, load_datasets, number_examples
from zerokit.training.examples import Tokenized, describe_left_out, tokenize
from zerokit.training.formats import describe_format, detect_format, text_columns
from zerokit.training.run_context import RunContext
from zerokit.training.streaming import Position, Stream, read_position
from zerokit.training.tasks import task_of, tasks_for
from zerokit.training.tasks.labels import describe_labels, known_labels
from zerokit.training.tasks.task import Task
from zerokit.training.tokenizer import load_tokenizer, train_tokenizer
from zerokit.units import quantity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def note(context: RunContext, line: str | None) -> None:
    """Print a line, if there is one, on rank 0."""
    if line is not None and context.group.ranks.is_main:
        console.note(line)


def digest_files(context: RunContext) -> None:
    """Digest the data files on one rank of each node."""
    loaded = context.loaded
    context.contents = context.group.from_node_main(
        lambda: digest_sources(loaded), where=loaded.where("data", "train")
    )


def load_examples(context: RunContext) -> None:
    """Load training and held-out examples."""
    seed = int(context.resolved.training.get("seed", 42))  # TrainingArguments' default
    context.examples, context.held_out_examples = load_datasets(context.loaded, seed, context.contents)


def choose_task(context: RunContext) -> None:
    """Make the task of the recipe with the labels of its examples, and report what is unusual about them."""
    loaded, examples, held_out = context.loaded, context.examples, context.held_out_examples
    note(context, examples.left_out)
    note(context, None if held_out is None else held_out.overlap)
    context.task = _task_of_recipe(loaded, context.folder, examples)
    if context.group.ranks.is_main:
        note(context, duplicates_line(examples, held_out, loaded, context.task))


def tokenize_examples(context: RunContext) -> None:
    """Tokenize training and held-out examples, or describe the stream."""
    if context.stream is None:
        tokenized = tokenize_reported(context, context.examples, "train")
        context.train, context.places = tokenized.dataset, find_places(tokenized, context.examples.place)
    else:
        context.train, context.places = context.stream.first_sequences, number_examples
        for line in _stream_lines(context.stream, context):
            note(context, line)
    context.held_out = None
    if context.held_out_examples is not None:
        held_out = tokenize_reported(context, context.held_out_examples, "eval").dataset
        context.held_out = context.group.node_main_first(
            lambda: context.task.with_fixed_targets(held_out, context.tokenizer)
        )


def _task_of_recipe(loaded: LoadedRecipe, folder: Path | None, examples: Examples) -> Task:
    """The task of the recipe, with the labels of its examples."""
    data, task = loaded.recipe.data, task_of(loaded.recipe.task)
    columns = examples.columns
    try:
        detect_format(columns, data, task.formats, where=examples.where)
    except DataError as error:
        if data.format != "auto" or not (fitting := tasks_for(columns, data.columns)):
            raise
        hint = f"They are for task.type {' or '.join(fitting)}: set that, or data.columns"
        raise DataError(error.message, where=error.where, hint=hint) from None
    known: tuple[str, ...] = ()
    if folder is not None:
        config = read_model_config(folder / "config.json", where=loaded.where("model", "path"))
        known = known_labels(config.data)
    return task if data.streaming else task.with_labels_of(examples.loaded, data.columns, known, examples.where)


def load_run_tokenizer(context: RunContext) -> None:
    """Load the tokenizer, or train it on rank 0."""
    group, loaded, folder = context.group, context.loaded, context.folder
    examples, task = context.examples, context.task
    section = loaded.recipe.model
    if section.tokenizer is None or isinstance(section.tokenizer, str):
        # One of the model's own name is of the model's revision.
        source = folder if section.tokenizer in (None, section.path) else section.tokenizer
        assert source is not None  # the recipe names a tokenizer when there is no checkpoint
        where = loaded.where("model", "tokenizer" if section.tokenizer else "path")

        def load() -> PreTrainedTokenizerBase:
            remote = section.trust_remote_code
            tokenizer = load_tokenizer(source, where=where, needs=task.needs, trust_remote_code=remote)
            task.check_tokenizer(tokenizer, where)
            return tokenizer

        context.tokenizer = group.node_main_first(load)
        return
    vocab_size = section.tokenizer.train_bpe.vocab_size
    columns = examples.columns
    format_ = group.together(
        lambda: detect_format(columns, loaded.recipe.data, task.formats, where=loaded.where("data", "train"))
    )
    used = text_columns(format_, loaded.recipe.data.columns, columns)
    if used is None:
        raise RecipeError(
            "a tokenizer trained here has no chat template, which data with messages needs",
            where=loaded.where("model", "tokenizer"),
            hint="Use text or prompt/completion data, or name a tokenizer",
        )

    def train() -> PreTrainedTokenizerBase:
        # Values that are not text are reported with their place when they are tokenized.
        texts = (text for name in used for text in examples.loaded.column(name) if isinstance(text, str))
        return train_tokenizer(texts, vocab_size, mask=task.needs == "mask")

    context.tokenizer = group.from_main(train)  # all ranks must have the same merges


def find_places(tokenized: Tokenized, place: Callable[[int], str]) -> Places:
    """Places of sequences, by the places of examples."""

    def places(rows: Sequence[int]) -> list[str]:
        return [place(number) for row in rows if (number := tokenized.example_of(row)) is not None]

    return places


def tokenize_reported(context: RunContext, examples: Examples, which: str) -> Tokenized:
    """Tokenize on one rank per node and then, from its cache, on the others; report what did not fit."""
    dataset, seq_len = examples.loaded, context.loaded.recipe.task.seq_len

    def tokenize_here() -> Tokenized:
        _, encoder = context.encoder(examples)
        return tokenize(dataset, encoder, seq_len=seq_len, where=examples.where, place=examples.place)

    tokenized = context.group.node_main_first(tokenize_here)
    if which == "train":
        format_, encoder = context.encoder(examples)
        columns = context.loaded.recipe.data.columns
        what = describe_format(format_, columns, examples.columns, context.tokenizer)
        joined = "" if encoder.packed_len is None or encoder.apart else "; joined and cut into full sequences"
        labels = describe_labels(context.task.labels)
        held_out = context.held_out_examples
        kept = "" if held_out is None else f", {len(held_out.loaded):,} held out"
        note(context, f"data: {quantity(len(dataset), 'example')}{kept}; columns: {what}{labels}{joined}")
    if tokenized.num_cut or tokenized.left_out:
        reasons = f" ({describe_left_out(tokenized.left_out)})" if tokenized.left_out else ""
        note(
            context,
            f"{which} data: of {quantity(len(dataset), 'example')}, {tokenized.num_cut:,} cut to "
            f"{seq_len} tokens, {tokenized.num_left_out:,} left out{reasons}",
        )
    if tokenized.num_joined:
        note(context, _joined_warning(which, tokenized.num_joined))
    return tokenized


def _joined_warning(which: str, count: int) -> str:
    """A warning that generation begins from other tokens than training."""
    return (
        f"zerokit: warning: {which} data: in {quantity(count, 'example')} the generation prompt of the chat "
        "template ends inside a token. The token in which the answer begins is trained on, but generation "
        "starts before it: end the prompt with a special token, without white space"
    )


def open_stream(context: RunContext) -> None:
    """Open the stream of the recipe, and read its first buffer.

    Raises:
        DataError: an example of the buffer is unusable, or none has a token to train on.
        CheckpointError: the checkpoint to resume from has no position in the data.
    """
    examples, data, training = context.examples, context.loaded.recipe.data, context.resolved.training
    source = examples.dataset
    if not isinstance(source, ExampleStream):
        context.stream = None
        return
    order = training.get("train_sampling_strategy", "random")
    seed = training.get("seed", 42) if training.get("data_seed") is None else training["data_seed"]
    stream = Stream(
        source,
        context.encoder(examples)[1],
        buffer_size=data.buffer_size,
        max_examples=data.max_examples,
        seed=int(seed) if getattr(order, "value", order) == "random" else None,
        where=examples.where,
        place=examples.place,
        begin=Position() if context.resume is None else read_position(context.resume),
    )
    stream.fill_first()
    context.stream = stream


def _stream_lines(stream: Stream, context: RunContext) -> Iterator[str]:
    """Messages about the stream, how to switch it off, and its first buffer."""
    recipe, examples = context.loaded.recipe, context.examples
    format_, _ = context.encoder(examples)
    what = describe_format(format_, recipe.data.columns, examples.columns, context.tokenizer)
    done = ["shuffles"] * (stream.seed is not None) + ["packs"] * (stream.encoder.packed_len is not None)
    within = f"{' and '.join(done)} within them" if done else "keeps their order"
    yield (
        f"data: {what}, streamed: reads {stream.buffer_size:,} examples at a time, and {within} "
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
    if first is not None and first.num_joined:
        yield _joined_warning("first", first.num_joined)

"""Prepares a run by an ordered list of steps, which find bad input before any rank depends on another."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zerokit import console
from zerokit.checkpoint.source import read_model_config
from zerokit.checkpoint.weights_digest import weights_digest
from zerokit.config.base import ZERO
from zerokit.distributed.extensions import compile_extensions
from zerokit.distributed.gpus_alone import check_gpus_alone
from zerokit.distributed.group import count_gpus, device_precision
from zerokit.distributed.libraries import set_up_libraries
from zerokit.distributed.nvme import check_nvme, uses_nvme
from zerokit.errors import DataError, ModelError, RecipeError
from zerokit.extras import versions
from zerokit.training.arguments import (
    build_arguments,
    check_fp16,
    check_full_batch,
    check_precision,
    ds_config_place,
    read_own_keys,
    resolve_arguments,
    size_nvme_buffers,
)
from zerokit.training.checksums import check_resumed
from zerokit.training.datasets import (
    Examples,
    Places,
    digest_sources,
    duplicates_line,
    find_places,
    load_datasets,
    number_examples,
)
from zerokit.training.examples import Tokenized, tokenize
from zerokit.training.folder import OutputFolder
from zerokit.training.formats import describe_format, detect_format, text_columns
from zerokit.training.identity import identify
from zerokit.training.model import (
    PreparedModel,
    check_checkpointing,
    check_sizes,
    find_checkpoint,
    generation_config,
    prepare_model,
)
from zerokit.training.optimizers import (
    check_made,
    check_optimizer_keys,
    check_schedule,
    check_zenflow,
    host_optimizer,
)
from zerokit.training.packing import may_arrange, padding_of
from zerokit.training.peft.compatibility import check_trained
from zerokit.training.peft.keys import check_peft_keys
from zerokit.training.preview import show
from zerokit.training.report import git_commit
from zerokit.training.resume import find_resume, resumed_identity
from zerokit.training.run_context import RunContext
from zerokit.training.streaming import open_stream, stream_lines
from zerokit.training.tasks import task_of, tasks_for
from zerokit.training.tasks.labels import describe_labels, known_labels
from zerokit.training.tokenizer import load_tokenizer, train_tokenizer
from zerokit.units import quantity

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from zerokit.distributed.group import RankGroup
    from zerokit.recipe import LoadedRecipe
    from zerokit.training.identity import Identity
    from zerokit.training.tasks.task import Task


@dataclass(frozen=True)
class Step:
    """A step of the preparation of a run."""

    run: Callable[[RunContext], None]
    where: Literal["local", "node_first", "collective"] = "local"
    """``local``: every rank by itself, without communication. ``node_first``: one rank of each node, then
    the others, which find its files cached. ``collective``: all ranks, which communicate; if it fails, it
    raises the same error on each."""


def run_steps(context: RunContext, steps: Iterable[Step]) -> None:
    """Run steps in order. Local steps in a row share one exchange of errors between the ranks.

    Raises:
        ZerokitError: bad input; the same on every rank.
    """
    group = context.group
    for where, found in groupby(steps, key=lambda step: step.where):
        actions = [partial(step.run, context) for step in found]
        if where == "local":
            group.together(partial(_call_all, actions))
            continue
        for action in actions:
            if where == "node_first":
                group.node_main_first(action)
            else:
                action()


def _call_all(actions: Iterable[Callable[[], None]]) -> None:
    for action in actions:
        action()


def prepare(
    group: RankGroup,
    loaded: LoadedRecipe,
    *,
    force: bool = False,
    trust_checkpoint: bool = False,
    verify: bool = True,
) -> RunContext:
    """Check and load everything but the model.

    Args:
        force: replace a model that an earlier run has saved in the output folder.
        trust_checkpoint: let the checkpoint to resume from load any class.
        verify: compare the checksums of that checkpoint.

    Raises:
        ZerokitError: bad input; the same on every rank.
    """
    set_up_libraries(group.ranks)
    context = RunContext(group, loaded, force, trust_checkpoint, verify)
    run_steps(context, (*ARGUMENTS, *CHECKS, *EXAMPLES, *RUN))
    return context


_PREVIEWED = 1000
"""The most examples that a preview reads."""


def preview(group: RankGroup, loaded: LoadedRecipe, count: int) -> None:
    """Print the first sequences as the model would see them.

    Raises:
        ZerokitError: bad input; the same on every rank.
    """
    set_up_libraries(group.ranks)
    context = RunContext(group, loaded)
    run_steps(context, (*ARGUMENTS, *EXAMPLES))
    first = group.together(lambda: context.examples.first(_PREVIEWED))
    sequences = _tokenize(context, replace(context.examples, dataset=first), "train")
    if group.ranks.is_main:
        show(sequences, context.task, context.tokenizer, count)


def _note(context: RunContext, line: str | None) -> None:
    """Print a line, if there is one, on rank 0."""
    if line is not None and context.group.ranks.is_main:
        console.note(line)


def _resolve(context: RunContext) -> None:
    context.versions = versions()
    context.git_commit = git_commit() if context.group.ranks.is_main else None
    context.resolved = resolve_arguments(
        context.loaded,
        world_size=context.group.ranks.world_size,
        default_precision=device_precision(),
    )


def _check_machine(context: RunContext) -> None:
    loaded, zero = context.loaded, context.resolved.ds_config[ZERO]

    def where(path: tuple[str | int, ...]) -> str:
        return ds_config_place(path, loaded)

    check_precision(context.resolved, loaded)
    check_gpus_alone(zero, where, ranks=context.group.ranks.world_size)
    if context.group.policy.uses_this_machine:
        check_nvme(zero, where)


def _find_resume(context: RunContext) -> None:
    loaded, resolved = context.loaded, context.resolved
    context.resume = find_resume(resolved, loaded, world_size=context.group.ranks.world_size)
    check_zenflow(
        resolved.ds_config[ZERO],
        resumes=context.resume is not None,
        where=ds_config_place((ZERO, "zenflow"), loaded),
    )


def _check_resumed(context: RunContext) -> None:
    if context.resume is not None:
        check_resumed(context.group, context.resume, verify=context.verify, trusted=context.trust_checkpoint)


def _check_output(context: RunContext) -> None:
    context.own = read_own_keys(context.resolved, context.loaded)
    context.output = OutputFolder(
        Path(context.resolved.training["output_dir"]),
        context.loaded.where("training", "output_dir"),
        context.force,
        context.resume,
        None if context.own.rescue_dir is None else Path(context.own.rescue_dir),
    )
    if context.group.policy.writes_files:
        context.output.check(context.loaded)


def _check_adapter(context: RunContext) -> None:
    context.adapter = check_peft_keys(context.loaded)


def _find_checkpoint(context: RunContext) -> None:
    context.folder = find_checkpoint(context.loaded.recipe.model, context.loaded.where("model", "path"))


def _digest_files(context: RunContext) -> None:
    loaded = context.loaded
    context.contents = context.group.from_node_main(
        lambda: digest_sources(loaded), where=loaded.where("data", "train")
    )


def _load_examples(context: RunContext) -> None:
    seed = int(context.resolved.training.get("seed", 42))  # TrainingArguments' default
    context.examples, context.held_out_examples = load_datasets(context.loaded, seed, context.contents)


def _choose_task(context: RunContext) -> None:
    loaded, examples, held_out = context.loaded, context.examples, context.held_out_examples
    _note(context, examples.left_out)
    _note(context, None if held_out is None else held_out.overlap)
    context.task = _task(loaded, context.folder, examples)
    if context.group.ranks.is_main:
        _note(context, duplicates_line(examples, held_out, loaded, context.task))


def _load_tokenizer(context: RunContext) -> None:
    """Load the tokenizer, or train it on rank 0."""
    context.tokenizer = _get_tokenizer(
        context.group, context.loaded, context.folder, context.examples, context.task
    )


def _prepare_model(context: RunContext) -> None:
    loaded = context.loaded
    context.model = prepare_model(loaded, context.folder, context.tokenizer, context.task)
    context.task = context.task.for_model(context.model.config, loaded)


def _check_model(context: RunContext) -> None:
    loaded, task, ranks = context.loaded, context.task, context.group.ranks.world_size
    config = context.model.config
    check_fp16(context.resolved, loaded, context.folder)
    context.resolved, line = size_nvme_buffers(context.resolved, loaded, config, ranks)
    _note(context, line)
    check_sizes(context.resolved.ds_config, loaded, config)
    check_checkpointing(context.resolved.training, loaded, config, task)
    check_trained(loaded, context.adapter, context.resolved, context.model, task, ranks)
    context.generation = generation_config(loaded, context.folder, context.tokenizer, task, context.model)


def _open_stream(context: RunContext) -> None:
    context.stream = open_stream(context)


def _tokenize_examples(context: RunContext) -> None:
    if context.stream is None:
        context.train = _tokenize(context, context.examples, "train")
        context.places = _places(context)
    else:
        context.train, context.places = context.stream.first_sequences, number_examples
        for line in stream_lines(context.stream, context):
            _note(context, line)
    context.held_out = None
    if context.held_out_examples is not None:
        tokenized = _tokenize(context, context.held_out_examples, "eval")
        context.held_out = context.group.node_main_first(
            lambda: context.task.with_fixed_targets(tokenized, context.tokenizer)
        )


def _compile_extensions(context: RunContext) -> None:
    ds_config = context.resolved.ds_config
    compile_extensions(
        context.group, cpu_optimizer=host_optimizer(ds_config), async_io=uses_nvme(ds_config[ZERO])
    )


def _build_arguments(context: RunContext) -> None:
    loaded, resolved = context.loaded, context.resolved
    args = build_arguments(resolved, loaded, use_cpu=count_gpus() == 0, evaluate=context.held_out is not None)
    check_made(args, resolved.ds_config, context.zero_stage, loaded.where("training", "optim"))
    check_optimizer_keys(args, resolved.ds_config, loaded)
    schedule = "lr_scheduler_type" if args.lr_scheduler_kwargs is None else "lr_scheduler_kwargs"
    check_schedule(args, resolved.ds_config, loaded.where("training", schedule))
    if context.stream is None:
        check_full_batch(args, len(context.train), context.group.ranks.world_size, loaded)
    context.args = args


def _identify(context: RunContext) -> None:
    """Determine what this run is, the same on every rank; a resumed run keeps its identity."""
    group, loaded, resume = context.group, context.loaded, context.resume
    weights = _weights_digest(group, loaded, context.model)

    def identify_here() -> Identity | None:
        if not group.ranks.is_main and group.policy.has_all_ranks:
            return None
        sizes = context.resolved.ds_config, context.model, context.train
        found = identify(
            loaded,
            context.args,
            *sizes,
            world_size=group.ranks.world_size,
            weights=weights,
            stream=context.stream,
        )
        if resume is None:
            return found
        return resumed_identity(resume, found, where=loaded.where("training", "resume_from_checkpoint"))

    identity = group.broadcast_object(group.together(identify_here))
    assert identity is not None
    context.identity = identity


def _measure_padding(context: RunContext) -> None:
    args = context.args
    layout = context.task.layout(args.per_device_train_batch_size, context.identity.examples_per_step)
    context.padding = None
    if layout is not None and (layout.in_rows or may_arrange(args)):
        layout = replace(layout, arranges=may_arrange(args))
        context.padding = padding_of(context.train, layout, args.seed)


ARGUMENTS = (Step(_resolve),)
CHECKS = (
    Step(_check_machine),
    Step(_find_resume),
    Step(_check_resumed, "collective"),
    Step(_check_output),
    Step(_check_adapter),
)
EXAMPLES = (
    Step(_find_checkpoint, "node_first"),
    Step(_digest_files, "collective"),
    Step(_load_examples, "node_first"),
    Step(_choose_task),
    Step(_load_tokenizer, "collective"),
    Step(_prepare_model),
)
RUN = (
    Step(_check_model),
    Step(_open_stream),
    Step(_tokenize_examples, "collective"),
    Step(_compile_extensions, "collective"),
    Step(_build_arguments),
    Step(_identify, "collective"),
    Step(_measure_padding),
)


def _weights_digest(group: RankGroup, loaded: LoadedRecipe, model: PreparedModel) -> str | None:
    """The digest of the weights to start from; None from scratch and in a rehearsal.

    One rank of each machine reads the files, which then are in memory for the ranks that load them.

    Raises:
        ModelError: they cannot be read, or differ between machines; the same on every rank.
    """
    folder, where = model.folder, loaded.where("model", "path")
    if folder is None or not group.policy.reads_weights:
        return None
    digest = group.together(lambda: weights_digest(folder, where=where) if group.ranks.is_node_main else None)
    found = group.gather_objects((socket.gethostname(), digest))
    first, of_first = found[0]
    other = next((host for host, each in found if each not in (None, of_first)), None)
    if other is not None:
        raise ModelError(
            f"'{folder}' has other weights on {other} than on {first}",
            where=where,
            hint="Copy the same model to all machines",
        )
    return of_first


def _task(loaded: LoadedRecipe, folder: Path | None, examples: Examples) -> Task:
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
    return (
        task if data.streaming else task.with_labels_of(examples.loaded, data.columns, known, examples.where)
    )


def _get_tokenizer(
    group: RankGroup, loaded: LoadedRecipe, folder: Path | None, examples: Examples, task: Task
) -> PreTrainedTokenizerBase:
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

        return group.node_main_first(load)
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

    def train() -> PreTrainedTokenizerBase | None:
        if not group.ranks.is_main and group.policy.has_all_ranks:
            return None
        # Values that are not text are reported with their place when they are tokenized.
        texts = (text for name in used for text in examples.loaded.column(name) if isinstance(text, str))
        return train_tokenizer(texts, vocab_size, mask=task.needs == "mask")

    # Rank 0 sends it to the others, because all ranks must have the same merges.
    return group.broadcast_object(group.together(train))


def _places(context: RunContext) -> Places:
    """File and line of each sequence, found by making the sequences once more."""
    examples = context.examples

    def numbers() -> Iterator[int]:
        _, encoder = context.encoder(examples)
        for number, example in enumerate(examples.loaded if encoder.packed_len is None else ()):
            for sequence in encoder.sequences(example):
                if sequence.has_targets:
                    yield number

    return find_places(numbers(), examples.place)


def _tokenize(context: RunContext, examples: Examples, which: str) -> Dataset:
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
        _note(context, f"data: {quantity(len(dataset), 'example')} of {what}{labels}{joined}")
    if tokenized.num_cut or tokenized.num_left_out or tokenized.nothing_taught:
        more = f"; left out, too: {tokenized.nothing_taught}" if tokenized.nothing_taught else ""
        _note(
            context,
            f"{which} data: of {quantity(len(dataset), 'example')}, {tokenized.num_cut:,} cut to "
            f"{seq_len} tokens, {tokenized.num_left_out:,} left out (no token to train on){more}",
        )
    return tokenized.dataset

"""Everything that bad input can break, done before any rank depends on another."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit import console
from zerokit.checkpoint.source import is_rehearsal, read_model_config
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
    check_full_batch,
    ds_config_place,
    resolve_arguments,
)
from zerokit.training.checksums import check_resumed
from zerokit.training.examples import Tokenized, tokenize
from zerokit.training.folder import OutputFolder
from zerokit.training.given import Examples, digest_sources, given_examples
from zerokit.training.identity import Identity, identify
from zerokit.training.model import (
    PreparedModel,
    check_checkpointing,
    check_sizes,
    find_checkpoint,
    generation_config,
    prepare_model,
)
from zerokit.training.nvme import size_buffers
from zerokit.training.open_stream import open_stream, stream_lines
from zerokit.training.optimizers import (
    check_made,
    check_optimizer_keys,
    check_schedule,
    check_zenflow,
    host_optimizer,
)
from zerokit.training.own_keys import take_own
from zerokit.training.packing import Padding, may_arrange, padding_of
from zerokit.training.peft.keys import check_peft_keys
from zerokit.training.peft.trial import check_trained
from zerokit.training.precision import check_fp16, check_precision
from zerokit.training.preview import show
from zerokit.training.report import git_commit
from zerokit.training.resume import find_resume, resumed
from zerokit.training.shapes import described, detect_format, text_columns
from zerokit.training.spikes import Places, looked_up, numbered
from zerokit.training.tasks import task_of, tasks_for
from zerokit.training.tasks.labels import described_labels, known_labels
from zerokit.training.tokenizer import load_tokenizer, train_tokenizer
from zerokit.training.twins import tell_twins
from zerokit.units import quantity

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import GenerationConfig, PreTrainedTokenizerBase, TrainingArguments

    from zerokit.distributed.group import RankGroup
    from zerokit.recipe import LoadedRecipe
    from zerokit.recipe.training_keys import OwnKeys
    from zerokit.resolving.settle import Resolved
    from zerokit.training.streaming import Stream
    from zerokit.training.tasks.task import Task


@dataclass(frozen=True)
class Prepared:
    """All that is known before the model is built."""

    loaded: LoadedRecipe
    resolved: Resolved
    args: TrainingArguments
    output: OutputFolder
    identity: Identity
    trust_checkpoint: bool
    """Whether what the checkpoint to continue from pickles may be of any class."""
    tokenizer: PreTrainedTokenizerBase
    task: Task
    model: PreparedModel
    train: Dataset
    """The sequences; of streamed data, those of the first buffer."""
    stream: Stream | None
    """None where the data are not streamed."""
    held_out: Dataset | None
    padding: Padding | None
    """None for a task that pads its batches as they come."""
    own: OwnKeys
    """Keys of the recipe's training that are zerokit's."""
    places: Places
    """Of the training examples."""
    generation: GenerationConfig | None
    """None for a model that generates no text."""
    versions: dict[str, str]
    """Of packages, and the commit below: as the run began. Its folder may change while it trains."""
    git_commit: str | None
    """None on all ranks but the first, and outside of a repository."""

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage of the run."""
        return int(self.resolved.ds_config["zero_optimization"].get("stage", 0))

    @property
    def precision(self) -> str:
        """``bf16``, ``fp16`` or ``fp32``."""
        return next((name for name in ("bf16", "fp16") if self.resolved.training[name]), "fp32")

    @property
    def output_dir(self) -> Path:
        """Where the model and the reports go."""
        return self.output.path


def prepare(
    group: RankGroup,
    loaded: LoadedRecipe,
    *,
    force: bool = False,
    trust_checkpoint: bool = False,
    verify: bool = True,
) -> Prepared:
    """Check and load everything but the model.

    Args:
        group: all ranks.
        loaded: the recipe.
        force: replace a model that an earlier run has saved in the output folder.
        trust_checkpoint: let the checkpoint to continue from load whatever it names.
        verify: compare the checksums of that checkpoint.

    Raises:
        ZerokitError: bad input; the same on every rank.
    """
    set_up_libraries(group.ranks)

    started_with = versions(), git_commit() if group.ranks.is_main else None
    recipe = loaded.recipe
    resolved = _resolve(group, loaded)
    group.together(lambda: check_precision(resolved, loaded))
    zero = resolved.ds_config["zero_optimization"]
    ranks = group.ranks.world_size
    group.together(lambda: check_gpus_alone(zero, lambda path: ds_config_place(path, loaded), ranks=ranks))
    if not is_rehearsal():  # in which there is a drive
        group.together(lambda: check_nvme(zero, lambda path: ds_config_place(path, loaded)))
    resume = group.together(lambda: find_resume(resolved, loaded, world_size=group.ranks.world_size))
    zenflow = ds_config_place((ZERO, "zenflow"), loaded)
    group.together(lambda: check_zenflow(zero, resumes=resume is not None, where=zenflow))
    if resume is not None:
        check_resumed(group, resume, verify=verify, trusted=trust_checkpoint)
    output_dir = Path(resolved.training["output_dir"])
    own = group.together(lambda: take_own(resolved, loaded))
    rescue = None if own.rescue_dir is None else Path(own.rescue_dir)
    output = OutputFolder(output_dir, loaded.where("training", "output_dir"), force, resume, rescue)
    if not is_rehearsal():  # which writes elsewhere
        group.together(lambda: output.check(loaded))
    group.together(lambda: check_peft_keys(loaded))
    folder = group.node_main_first(lambda: find_checkpoint(recipe.model, loaded.where("model", "path")))
    examples, held_out = _given_examples(group, loaded, resolved)
    if group.ranks.is_main:
        for line in (examples.left_out, None if held_out is None else held_out.overlap):
            if line:
                console.note(line)
    task = group.together(lambda: _task(loaded, folder, examples))
    tell_twins(group, examples, held_out, loaded, task)
    tokenizer = _get_tokenizer(group, loaded, folder, examples, task)
    group.together(lambda: check_fp16(resolved, loaded, folder))
    model = group.together(lambda: prepare_model(loaded, folder, tokenizer, task))
    resolved, sized = group.together(
        lambda: size_buffers(resolved, loaded, model.config, group.ranks.world_size)
    )
    if sized is not None and group.ranks.is_main:
        console.note(sized)
    task = group.together(lambda: task.for_model(model.config, loaded))
    group.together(lambda: check_sizes(resolved.ds_config, loaded, model.config))
    group.together(lambda: check_checkpointing(resolved.training, loaded, model.config, task))
    group.together(lambda: check_trained(loaded, resolved, model, task, ranks))
    generation = group.together(lambda: generation_config(loaded, folder, tokenizer, task, model))
    stream = group.together(lambda: open_stream(examples, tokenizer, loaded, resolved, task, resume))
    if stream is None:
        train = _tokenize(group, examples, tokenizer, loaded, task, "train")
        places = _places(examples, tokenizer, loaded, task)
    else:
        train, places = stream.first_sequences, numbered
        if group.ranks.is_main:
            for line in stream_lines(stream, examples, tokenizer, loaded, task):
                console.note(line)
    evaluated = None
    if held_out is not None:
        tokenized = _tokenize(group, held_out, tokenizer, loaded, task, "eval")
        evaluated = group.node_main_first(lambda: task.with_fixed_targets(tokenized, tokenizer))
    on_host = host_optimizer(resolved.ds_config)
    compile_extensions(group, cpu_optimizer=on_host, async_io=uses_nvme(zero))
    args = group.together(
        lambda: build_arguments(resolved, loaded, use_cpu=count_gpus() == 0, evaluate=evaluated is not None)
    )
    stage = int(zero.get("stage", 0))
    group.together(lambda: check_made(args, resolved.ds_config, stage, loaded.where("training", "optim")))
    group.together(lambda: check_optimizer_keys(args, resolved.ds_config, loaded))
    schedule = loaded.where(
        "training", "lr_scheduler_type" if args.lr_scheduler_kwargs is None else "lr_scheduler_kwargs"
    )
    group.together(lambda: check_schedule(args, resolved.ds_config, schedule))
    if stream is None:
        group.together(lambda: check_full_batch(args, len(train), ranks, loaded))
    identity = _identity(group, loaded, resolved, args, model, train, stream, resume)
    layout = task.layout(args.per_device_train_batch_size, identity.examples_per_step)
    padding = None
    if layout is not None and (layout.in_rows or may_arrange(args)):
        padding = padding_of(train, replace(layout, arranges=may_arrange(args)), args.seed)
    return Prepared(
        *(loaded, resolved, args, output, identity, trust_checkpoint),
        *(tokenizer, task, model, train, stream, evaluated),
        padding=padding,
        own=own,
        places=places,
        generation=generation,
        versions=started_with[0],
        git_commit=started_with[1],
    )


_PREVIEWED = 1000
"""Examples that a preview reads, of those that are there."""


def preview(group: RankGroup, loaded: LoadedRecipe, count: int) -> None:
    """Print the first sequences as the model would see them.

    Args:
        group: all ranks.
        loaded: the recipe.
        count: how many.

    Raises:
        ZerokitError: bad input; the same on every rank.
    """
    set_up_libraries(group.ranks)
    model = loaded.recipe.model
    folder = group.node_main_first(lambda: find_checkpoint(model, loaded.where("model", "path")))
    resolved = _resolve(group, loaded)
    examples, held_out = _given_examples(group, loaded, resolved)
    task = group.together(lambda: _task(loaded, folder, examples))
    tell_twins(group, examples, held_out, loaded, task)
    tokenizer = _get_tokenizer(group, loaded, folder, examples, task)
    prepared = group.together(lambda: prepare_model(loaded, folder, tokenizer, task))
    task = group.together(lambda: task.for_model(prepared.config, loaded))
    first = group.together(lambda: examples.first(_PREVIEWED))
    sequences = _tokenize(group, replace(examples, dataset=first), tokenizer, loaded, task, "train")
    if group.ranks.is_main:
        show(sequences, task, tokenizer, count)


def _given_examples(
    group: RankGroup, loaded: LoadedRecipe, resolved: Resolved
) -> tuple[Examples, Examples | None]:
    """The examples of the recipe; one rank of each node reads the files, the others the cache."""
    contents = group.from_node_main(lambda: digest_sources(loaded), where=loaded.where("data", "train"))
    return group.node_main_first(lambda: given_examples(loaded, _seed(resolved), contents))


def _resolve(group: RankGroup, loaded: LoadedRecipe) -> Resolved:
    world_size = group.ranks.world_size
    return group.together(
        lambda: resolve_arguments(loaded, world_size=world_size, default_precision=device_precision())
    )


def _identity(
    group: RankGroup,
    loaded: LoadedRecipe,
    resolved: Resolved,
    args: TrainingArguments,
    model: PreparedModel,
    train: Dataset,
    stream: Stream | None,
    resume: Path | None,
) -> Identity:
    """What this run is, the same on every rank; one that is resumed is the run that it was."""

    weights = _weights_digest(group, loaded, model)

    def identify_here() -> Identity | None:
        if not group.ranks.is_main and not is_rehearsal():  # in which it may be the only rank
            return None
        world_size = group.ranks.world_size
        sizes = resolved.ds_config, model, train
        found = identify(loaded, args, *sizes, world_size=world_size, weights=weights, stream=stream)
        if resume is None:
            return found
        return resumed(resume, found, where=loaded.where("training", "resume_from_checkpoint"))

    identity = group.broadcast_object(group.together(identify_here))
    assert identity is not None
    return identity


def _weights_digest(group: RankGroup, loaded: LoadedRecipe, model: PreparedModel) -> str | None:
    """The digest of the weights to start from; None from scratch and in a rehearsal.

    One rank of each machine reads the files, which then are in memory for the ranks that load them.

    Raises:
        ModelError: they cannot be read, or differ between machines; the same on every rank.
    """
    folder, where = model.folder, loaded.where("model", "path")
    if folder is None or is_rehearsal():
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


def _seed(resolved: Resolved) -> int:
    return int(resolved.training.get("seed", 42))  # TrainingArguments' default


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
    # Trained on one rank and sent to the others: all of them must have the very same merges.
    tokenizer = None
    if group.ranks.is_main or is_rehearsal():  # in which there may be no other rank
        # What is no text is named with its place when it is tokenized.
        texts = (text for name in used for text in examples.loaded.column(name) if isinstance(text, str))
        tokenizer = train_tokenizer(texts, vocab_size, mask=task.needs == "mask")
    return group.broadcast_object(tokenizer)


def _places(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, loaded: LoadedRecipe, task: Task
) -> Places:
    """Where sequences come from: found by making them once more."""

    def numbers() -> Iterator[int]:
        data = loaded.recipe.data
        format_ = detect_format(examples.columns, data, task.formats, where=examples.where)
        encoder = task.encoder(tokenizer, format_, data.columns)
        for number, example in enumerate(examples.loaded if encoder.packed_len is None else ()):
            for sequence in encoder.sequences(example):
                if sequence.has_targets:
                    yield number

    return looked_up(numbers(), examples.place)


def _tokenize(
    group: RankGroup,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    loaded: LoadedRecipe,
    task: Task,
    which: str,
) -> Dataset:
    """Tokenize on one rank per node and then, from its cache, on the others; say what did not fit."""
    recipe = loaded.recipe
    dataset, columns, where = examples.loaded, examples.columns, examples.where
    seq_len = recipe.task.seq_len

    def tokenize_here() -> Tokenized:
        format_ = detect_format(columns, recipe.data, task.formats, where=where)
        encoder = task.encoder(tokenizer, format_, recipe.data.columns)
        return tokenize(dataset, encoder, seq_len=seq_len, where=where, place=examples.place)

    tokenized = group.node_main_first(tokenize_here)
    if group.ranks.is_main and which == "train":
        format_ = detect_format(columns, recipe.data, task.formats, where=where)
        what = described(format_, recipe.data.columns, columns, tokenizer)
        encoder = task.encoder(tokenizer, format_, recipe.data.columns)
        joined = "" if encoder.packed_len is None or encoder.apart else "; joined and cut into full sequences"
        labels = described_labels(task.labels)
        console.note(f"data: {quantity(len(dataset), 'example')} of {what}{labels}{joined}")
    if group.ranks.is_main and (tokenized.num_cut or tokenized.num_left_out or tokenized.nothing_taught):
        more = f"; left out, too: {tokenized.nothing_taught}" if tokenized.nothing_taught else ""
        console.note(
            f"{which} data: of {quantity(len(dataset), 'example')}, {tokenized.num_cut:,} cut to "
            f"{seq_len} tokens, {tokenized.num_left_out:,} left out (no token to train on){more}"
        )
    return tokenized.dataset

"""Prepares a run by an ordered list of steps, which find bad input before any rank depends on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

from zerokit.checkpoint.weights_digest import weights_digest
from zerokit.config.base import ZERO
from zerokit.distributed.extensions import compile_extensions
from zerokit.distributed.gpu_features import check_gpu_features
from zerokit.distributed.group import RankGroup, count_gpus, device_precision
from zerokit.distributed.libraries import set_up_libraries
from zerokit.distributed.nvme import check_nvme, uses_nvme
from zerokit.extras import package_versions
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import ParallelSection
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
from zerokit.training.folder import OutputFolder
from zerokit.training.identity import Identity, identify
from zerokit.training.model import (
    PreparedModel,
    check_checkpointing,
    check_sizes,
    find_checkpoint,
    generation_config,
    mlps_to_tile,
    prepare_model,
)
from zerokit.training.optimizers import (
    check_optimizer,
    check_optimizer_keys,
    check_schedule,
    check_zenflow,
    host_optimizer,
)
from zerokit.training.packing import can_arrange, padding_of
from zerokit.training.peft.compatibility import check_trained
from zerokit.training.peft.keys import check_peft_keys
from zerokit.training.prepare_data import (
    choose_task,
    digest_files,
    load_examples,
    load_run_tokenizer,
    note,
    open_stream,
    tokenize_examples,
    tokenize_reported,
)
from zerokit.training.preview import show
from zerokit.training.report import git_commit
from zerokit.training.resume import check_resumed, find_resume, resumed_identity
from zerokit.training.run_context import RunContext
from zerokit.training.samples import read_sample_prompts
from zerokit.training.sequence_parallel import check_parallelism, check_sequence_parallel
from zerokit.training.tensor_parallel import check_model as check_tensor_parallel


@dataclass(frozen=True)
class PreparationStep:
    run: Callable[[RunContext], None]
    where: Literal["local", "node_first", "collective"] = "local"
    """``local``: every rank by itself, without communication. ``node_first``: one rank of each node, then
    the others, which find its files cached. ``collective``: all ranks, which communicate; if it fails, it
    raises the same error on each."""


def run_steps(context: RunContext, steps: Iterable[PreparationStep]) -> None:
    """Run steps in order. Local steps in a row share one exchange of errors. ZerokitError on every rank."""
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
    group: RankGroup, loaded: LoadedRecipe, *, force: bool = False, trust_checkpoint: bool = False, verify: bool = True
) -> RunContext:
    """Check and load everything but the model. ZerokitError on every rank for bad input.

    Args:
        force: replace a model that an earlier run has saved in the output folder.
        trust_checkpoint: let the checkpoint to resume from load any class.
        verify: compare the checksums of that checkpoint.
    """
    set_up_libraries(group.ranks)
    context = RunContext(group, loaded, force, trust_checkpoint, verify)
    run_steps(context, (*ARGUMENTS, *CHECKS, *EXAMPLES, *RUN))
    return context


_PREVIEWED = 1000
"""The most examples that a preview reads."""


def preview(group: RankGroup, loaded: LoadedRecipe, count: int) -> None:
    """Print the first sequences as the model would see them. ZerokitError on every rank for bad input."""
    set_up_libraries(group.ranks)
    alone = loaded.recipe.model_copy(update={"parallel": ParallelSection()})  # of whatever number of ranks
    context = RunContext(group, replace(loaded, recipe=alone))
    run_steps(context, (*ARGUMENTS, *EXAMPLES))
    first = group.together(lambda: context.examples.first(_PREVIEWED))
    sequences = tokenize_reported(context, replace(context.examples, dataset=first), "train").dataset
    if group.ranks.is_main:
        show(sequences, context.task, context.tokenizer, count)


def _resolve(context: RunContext) -> None:
    check_parallelism(context.loaded, num_gpus=context.group.ranks.world_size)
    context.versions = package_versions()
    context.git_commit = git_commit() if context.group.ranks.is_main else None
    context.resolved = resolve_arguments(
        context.loaded, place=context.group_place, default_precision=device_precision()
    )
    check_sequence_parallel(context.resolved, context.loaded)


def _check_machine(context: RunContext) -> None:
    loaded, zero = context.loaded, context.resolved.ds_config[ZERO]
    where = partial(ds_config_place, loaded)
    check_precision(context.resolved, loaded)
    check_gpu_features(zero, where, ranks=context.group.ranks.world_size)
    if context.group.policy.uses_this_machine:
        check_nvme(zero, where)


def _find_resume(context: RunContext) -> None:
    context.resume = find_resume(context.group, context.resolved, context.loaded)


def _check_settings(context: RunContext) -> None:
    loaded = context.loaded
    zero, resumes = context.resolved.ds_config[ZERO], context.resume is not None
    check_zenflow(zero, resumes=resumes, where=ds_config_place(loaded, (ZERO, "zenflow")))
    context.own = read_own_keys(context.resolved)
    context.output = OutputFolder(
        Path(context.resolved.training["output_dir"]),
        loaded.where("training", "output_dir"),
        context.force,
        context.resume,
    )
    if context.group.policy.writes_files:
        context.output.check(loaded)
    context.adapter = check_peft_keys(loaded)


def _check_resumed(context: RunContext) -> None:
    if context.resume is not None:
        check_resumed(context.group, context.resume, verify=context.verify, trusted=context.trust_checkpoint)


def _find_checkpoint(context: RunContext) -> None:
    context.folder = find_checkpoint(context.loaded.recipe.model, context.loaded.where("model", "path"))


def _prepare_model(context: RunContext) -> None:
    loaded = context.loaded
    context.model = prepare_model(loaded, context.folder, context.tokenizer, context.task)
    context.task = context.task.for_model(context.model.config, loaded)


def _check_model(context: RunContext) -> None:
    loaded, task, ranks = context.loaded, context.task, context.group.ranks.world_size
    config = context.model.config
    check_fp16(context.resolved, loaded, context.folder)
    context.resolved, line = size_nvme_buffers(context.resolved, loaded, config, ranks)
    note(context, line)
    check_sizes(context.resolved.ds_config, loaded, config)
    check_tensor_parallel(config, loaded)
    check_checkpointing(context.resolved.training, loaded, config, task)
    context.tiled_mlps = mlps_to_tile(context.resolved.training, loaded, config) if context.own.tiled_mlp else ()
    check_trained(loaded, context.adapter, context.resolved, context.model, task, ranks)
    context.generation = generation_config(loaded, context.folder, context.tokenizer, task, context.model)


def _compile_extensions(context: RunContext) -> None:
    ds_config = context.resolved.ds_config
    compile_extensions(context.group, cpu_optimizer=host_optimizer(ds_config), async_io=uses_nvme(ds_config[ZERO]))


def _build_arguments(context: RunContext) -> None:
    loaded, resolved = context.loaded, context.resolved
    place, evaluates = context.group_place, context.held_out is not None
    args = build_arguments(resolved, loaded, place, use_cpu=count_gpus() == 0, evaluate=evaluates)
    check_optimizer(args, resolved.ds_config, context.zero_stage, loaded.where("training", "optim"))
    check_optimizer_keys(args, resolved.ds_config, loaded)
    schedule = "lr_scheduler_type" if args.lr_scheduler_kwargs is None else "lr_scheduler_kwargs"
    check_schedule(args, resolved.ds_config, loaded.where("training", schedule))
    if context.stream is None:
        check_full_batch(args, len(context.train), context.group_place.data_ranks, loaded)
    context.args = args


def _identify(context: RunContext) -> None:
    """Determine what this run is, the same on every rank; a resumed run keeps its identity."""
    group, loaded, resume = context.group, context.loaded, context.resume
    weights = _weights_digest(group, loaded, context.model)

    def identify_here() -> Identity:
        found = identify(
            loaded,
            context.args,
            context.resolved.ds_config,
            context.model,
            context.train,
            world_size=group.ranks.world_size,
            data_ranks=context.group_place.data_ranks,
            weights=weights,
            stream=context.stream,
        )
        if resume is None:
            return found
        where = loaded.where("training", "resume_from_checkpoint")
        return resumed_identity(resume, found, data_ranks=context.group_place.data_ranks, where=where)

    context.identity = group.from_main(identify_here)


def _measure_padding(context: RunContext) -> None:
    args = context.args
    layout = context.task.layout(args.per_device_train_batch_size, context.identity.examples_per_step)
    context.padding = None
    if layout is not None and (layout.in_rows or can_arrange(args)):
        layout = replace(layout, arranges=can_arrange(args))
        context.padding = padding_of(context.train, layout, args.seed)


ARGUMENTS = (PreparationStep(_resolve),)
CHECKS = (
    PreparationStep(_check_machine),
    PreparationStep(_find_resume, "collective"),
    PreparationStep(_check_settings),
    PreparationStep(_check_resumed, "collective"),  # last: it reads the whole checkpoint
)
EXAMPLES = (
    PreparationStep(_find_checkpoint, "node_first"),
    PreparationStep(digest_files, "collective"),
    PreparationStep(load_examples, "node_first"),
    PreparationStep(choose_task),
    PreparationStep(load_run_tokenizer, "collective"),
    PreparationStep(_prepare_model),
)
RUN = (
    PreparationStep(_check_model),
    PreparationStep(open_stream),
    PreparationStep(tokenize_examples, "collective"),
    PreparationStep(read_sample_prompts),
    PreparationStep(_compile_extensions, "collective"),
    PreparationStep(_build_arguments),
    PreparationStep(_identify, "collective"),
    PreparationStep(_measure_padding),
)


def _weights_digest(group: RankGroup, loaded: LoadedRecipe, model: PreparedModel) -> str | None:
    """The digest of the weights to start from; None from scratch and in a rehearsal.

    ZerokitError on every rank if the files cannot be read, or differ between machines.
    """
    folder, where = model.folder, loaded.where("model", "path")
    if folder is None or not group.policy.reads_weights:
        return None
    return group.from_node_main(lambda: weights_digest(folder, where=where), where=where)

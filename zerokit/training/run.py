"""Builds the model, trains and saves it, and reports: the part of a run with all ranks together."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, enable_full_determinism, set_seed

import zerokit
from zerokit import console
from zerokit.distributed.cores import bind_to_cores
from zerokit.distributed.group import count_gpus
from zerokit.distributed.loader_workers import report_lost_batches
from zerokit.errors import ConfigError, RankError, RunError, ZerokitError
from zerokit.patches import Patch, put
from zerokit.training.announce import announce, count_parameters
from zerokit.training.chunked_loss import chunk_the_loss, wants_chunked_loss
from zerokit.training.engine import read_parameters_once, reset_module_order
from zerokit.training.long_sequences import tile_mlps
from zerokit.training.model import build_model, call_same_modules, switch_dropout_off, weights_dtype
from zerokit.training.optimizers import host_optimizer
from zerokit.training.peft.adapter import add_adapter
from zerokit.training.peft.compatibility import loading_options
from zerokit.training.progress import PeakMemory, RunProgress
from zerokit.training.report import RunReport
from zerokit.training.resume import reshard_for_run
from zerokit.training.samples import Samples
from zerokit.training.save import publish_model
from zerokit.training.tensor_parallel import loading_whole
from zerokit.training.throughput import Throughput, operations_per_token, peak_flops
from zerokit.units import format_bytes, format_seconds, quantity

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

    from zerokit.training.run_context import RunContext
    from zerokit.training.trainer import ZeroTrainer


def run(context: RunContext) -> None:
    """Train, evaluate before and after, save, and write ``run.json``.

    Raises:
        RankError: this rank is out of memory.
        RunError: the run has diverged; the same on every rank.
    """
    group = context.group
    try:
        with ExitStack() as removal:
            checkpoint = reshard_for_run(group, context.output.resume, context.output_dir, removal)
            _run(context, checkpoint, removal)
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not any(words in text for words in _NO_MEMORY):
            raise
        size = re.search(r"[Tt]r(?:ied|ying) to allocate \d[\d.]* \w+", text)
        raise RankError(
            f"out of memory{f' ({size[0]})' if size else ''}",
            where=f"rank {group.ranks.rank}",
            hint="Lower training.per_device_train_batch_size or task.seq_len, set "
            "training.gradient_checkpointing, or take a higher ZeRO stage or offload: 'zerokit estimate' "
            "says what fits",
        ) from error


_NO_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory")


def _run(context: RunContext, checkpoint: Path | None, removal: ExitStack) -> None:
    group = context.group
    note = console.note if group.ranks.is_main else None
    use_monotonic_clock()
    report_lost_batches()
    cuda = count_gpus() > 0
    num_cores = _assign_cores(context)
    memory = PeakMemory(cuda=cuda)
    memory.start()
    _seed_everything(context)
    if context.zero_stage == 3:
        reset_module_order()
        read_parameters_once()
    model = _build_model(context, note)
    if context.tiled_mlps:
        tile_mlps(model, context.tiled_mlps)
    learns = context.adapter is not None and context.adapter.method.tokens == "embedded"
    chunked = wants_chunked_loss(context.task.section, context.args, learns_tokens=learns)
    chunked = chunked and chunk_the_loss(model, note)
    expected = announce(context, model, cuda=cuda, chunked=chunked)
    if num_cores is not None and note is not None:
        note(
            f"each rank keeps to {quantity(num_cores, 'core')} of its own, for the optimizer's step; "
            "training.bind_cores: false lets all ranks use all"
        )
    operations = operations_per_token(model)
    throughput = Throughput(operations, _flops(context) if cuda else None)
    progress = RunProgress(context.output_dir, throughput=throughput, memory=memory)
    samples = [Samples(context)] if context.sample_prompts else []  # before `progress`, whose clock it would stop
    trainer = _make_trainer(context, model, [*samples, progress, _RemoveCheckpoint(removal)], operations)
    try:
        leaves = group.leave_request.handle_requests(group.gather_objects)
        with leaves if group.policy.writes_files else nullcontext():
            result = _fit(trainer, context, checkpoint)
    finally:
        progress.stop()
    before, after = _held_out(trainer)
    peaks = group.gather_objects(memory.read())
    seconds = float(result.metrics["train_runtime"])
    steps, tokens = int(trainer.state.global_step), int(trainer.state.num_input_tokens_seen)
    report = RunReport(
        run_id=context.identity.run_id,
        zerokit_version=zerokit.__version__,
        versions=context.versions,
        git_commit=context.git_commit,
        seed=context.args.seed,
        data_seed=context.args.seed if context.args.data_seed is None else context.args.data_seed,
        num_parameters=count_parameters(model, trainable=False),
        num_trainable_parameters=count_parameters(model, trainable=True),
        zero_stage=context.zero_stage,
        world_size=group.ranks.world_size,
        parallel={"data": context.group_place.data_ranks, **context.loaded.recipe.parallel.model_dump()},
        precision=context.loaded.recipe.precision or context.precision,
        device="cuda" if cuda else "cpu",
        num_train_examples=None if context.stream is not None else len(context.train),
        num_eval_examples=len(context.held_out or ()),
        steps=steps,
        resumed_from_step=progress.first_step,
        train_seconds=seconds,
        tokens=tokens,
        tokens_per_second=(tokens - progress.first_tokens) / seconds,
        step_seconds=throughput.step_seconds,
        mfu=throughput.mfu(tokens - progress.first_tokens),
        loss_before=before.pop("loss", None),
        loss_after=after.pop("loss", None),
        metrics_before=before,
        metrics_after=after,
        train_loss=float(result.metrics["train_loss"]) if steps > progress.first_step else None,
        model_states_bytes=expected.model_states_bytes,
        expected_peak_bytes=expected.peak_bytes,
        peak_memory_bytes=max(peaks),
        padding=None if context.padding is None else asdict(context.padding),
        recipe=context.loaded.recipe.model_dump(exclude_unset=True),
        ds_config=context.resolved.ds_config,
    )
    files = publish_model(trainer, context.output, group, report)
    if group.ranks.is_main:
        _print_summary(report, context, len(files))


def _assign_cores(context: RunContext) -> int | None:
    """Give each rank its own cores if it steps the optimizer on them; returns their number."""
    if not context.own.bind_cores or not host_optimizer(context.resolved.ds_config):
        return None
    return bind_to_cores(context.group) if context.group.policy.uses_this_machine else None


def _build_model(context: RunContext, note: Callable[[str], None] | None) -> PreTrainedModel:
    """The model with its adapter."""
    recipe = context.loaded.recipe
    if recipe.matmul_precision is not None:
        torch.set_float32_matmul_precision(recipe.matmul_precision)
    dtype = weights_dtype(recipe.model, context.precision)
    options = loading_options(context.loaded, context.adapter, context.precision)
    with loading_whole():
        model = build_model(context.model, recipe.model, dtype, context.task.model, **options)
    if context.generation is not None:
        model.generation_config = context.generation
    model = add_adapter(model, context.adapter, context.loaded, context.args, context.task.peft_type)
    if context.group.ranks.world_size > 1:
        call_same_modules(model, context.zero_stage, context.loaded.where("deepspeed"), note)
    if context.task.needs_reference:  # the reference has no dropout
        switch_dropout_off(model)
    return model


def _flops(context: RunContext) -> float | None:
    """Peak FLOP/s of all cards together, if they are alike."""
    matmul = context.loaded.recipe.matmul_precision or ("high" if context.args.tf32 else None)
    flops = peak_flops(torch.cuda.get_device_name(), context.precision, matmul)
    return None if flops is None else flops * context.group.ranks.world_size


class _RemoveCheckpoint(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Removes a resharded checkpoint after the first step, when all ranks have loaded it."""

    def __init__(self, removal: ExitStack) -> None:
        self._removal = removal

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._removal.close()


def _seed_everything(context: RunContext) -> None:
    """Seed before the model is made. The Trainer seeds afterwards."""
    if context.args.full_determinism:
        enable_full_determinism(context.args.seed)
    else:
        set_seed(context.args.seed)


def _make_trainer(
    context: RunContext, model: PreTrainedModel, callbacks: list[TrainerCallback], operations: int | None
) -> ZeroTrainer:
    from zerokit.training.trainer import ZeroTrainer

    context.args.remove_unused_columns = False  # a task makes the columns that its collator needs
    trainer = ZeroTrainer(context, model, callbacks=callbacks, operations_per_token=operations)
    assert trainer.is_deepspeed_enabled, "the Trainer does not use DeepSpeed"
    for callback in (PrinterCallback, ProgressCallback):  # zerokit has its own progress bar
        trainer.remove_callback(callback)
    return trainer


def _fit(trainer: Trainer, context: RunContext, resume: Path | None) -> Any:
    try:
        return trainer.train(resume_from_checkpoint=resume and str(resume))
    except ZerokitError:
        raise
    except Exception as error:
        if "loss scale already at minimum" in str(error):
            raise RunError(
                "fp16 does not train this model: its gradients overflow at the smallest loss scale",
                where=context.output_dir,
                hint="Train in bf16 or fp32, or lower training.learning_rate",
            ) from error
        # The scheduler's steps are known only now, when transformers compares them with the ds_config.
        _, found, mismatches = str(error).partition("mismatch TrainingArguments values:")
        if not found:
            raise
        raise ConfigError(
            f"the ds_config and the run disagree: {mismatches.partition('The easiest method')[0]}",
            where=context.loaded.where("deepspeed"),
            hint='Write "auto" for these values',
        ) from error


def _held_out(trainer: ZeroTrainer) -> tuple[dict[str, float], dict[str, float]]:
    """Loss and metrics on the held-out data before the first step and after the last; empty without any."""
    if trainer.eval_dataset is None:
        return {}, {}
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    before: dict[str, Any] = next((entry for entry in evaluations if entry["step"] == 0), {})
    # With load_best_model_at_end, the weights are no longer those that were evaluated last.
    outdated = not evaluations or evaluations[-1]["step"] < trainer.state.global_step
    again = outdated or trainer.args.load_best_model_at_end
    after: dict[str, Any] = trainer.evaluate() if again else evaluations[-1]
    names = trainer.evaluator.metric_names
    return _named(names, before), _named(names, after)


def _named(names: Sequence[str], evaluation: Mapping[str, Any]) -> dict[str, float]:
    found = {name: evaluation.get(f"eval_{name}") for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def _print_summary(report: RunReport, context: RunContext, num_files: int) -> None:
    results = ["nothing was left to train"] if report.train_loss is None else []
    if report.loss_before is not None and report.loss_after is not None:
        results.append(f"held-out loss {figure(report.loss_before)} -> {figure(report.loss_after)}")
    elif report.train_loss is not None:
        results.append(f"train loss {figure(report.train_loss)}")
    for name, after in report.metrics_after.items():
        before = report.metrics_before.get(name)
        results.append(f"{name} {'' if before is None else f'{figure(before)} -> '}{figure(after)}")
    steps = quantity(report.steps - report.resumed_from_step, "step")
    since = f" after step {report.resumed_from_step}" if report.resumed_from_step else ""
    mfu = "" if report.mfu is None else f"MFU {report.mfu:.1%}, "
    expected = report.expected_peak_bytes if report.device == "cuda" else None
    estimate = "" if expected is None else f", estimated {format_bytes(expected)}"
    console.note(
        f"{steps}{since} in {format_seconds(report.train_seconds)}, "
        f"{report.tokens_per_second:,.0f} tokens/s, {mfu}{', '.join(results)}, "
        f"peak {format_bytes(report.peak_memory_bytes)} per rank{estimate}"
    )
    console.note(f"saved the model in {context.output_dir} ({quantity(num_files, 'file')})")


def figure(value: float) -> str:
    """A number with three decimals, or three significant digits if it is small."""
    return f"{value:.3g}" if 0 < abs(value) < 0.1 else f"{value:.3f}"


_PURPOSE = "measure durations though the system's clock is set"
_CLOCKS = [Patch(f"transformers.{module}", "time", _PURPOSE) for module in ("trainer", "trainer_utils")]


def use_monotonic_clock() -> None:
    """Make the Trainer measure durations by ``time.monotonic``, whatever sets the clock."""
    for patch in _CLOCKS:
        put(patch, SimpleNamespace(time=lambda: time.monotonic()))  # a rehearsal replaces it later

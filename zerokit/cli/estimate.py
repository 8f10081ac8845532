"""``zerokit estimate``: where the bytes of a training run go, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from zerokit.choices import LearnedTokensMethod, PeftMethod
from zerokit.cli import estimate_options as options
from zerokit.cli.gpu_options import chosen_gpu, memory_size, note_caveat
from zerokit.cli.output import json_on_stdout, not_stdout, print_json, to_json
from zerokit.errors import ConfigError, ZerokitError
from zerokit.files import check_writable, write_file
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.gpus import some_gpu

if TYPE_CHECKING:
    from zerokit.estimation import Axes, Fit, Limits, Question
    from zerokit.hardware.gpus import Gpu
    from zerokit.memory import Estimate
    from zerokit.models import ModelShape


def estimate(
    model: options.Model,
    num_gpus: options.NumGpus,
    gpus_per_node: options.GpusPerNode = GPUS_PER_NODE,
    micro_batch_size: options.MicroBatchSize = None,
    eval_batch_size: options.EvalBatchSize = None,
    seq_len: options.SeqLen = None,
    gradient_accumulation_steps: options.GradientAccumulationSteps = None,
    ds_config: options.DsConfig = None,
    target: options.Target = "trainer",
    zero_stage: options.ZeroStage = None,
    offload_optimizer: options.OffloadOptimizer = None,
    offload_param: options.OffloadParam = None,
    precision: options.Precision = None,
    gradient_checkpointing: options.GradientCheckpointing = False,
    attention: options.Attention = None,
    optimizer: options.Optimizer = None,
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    dora: options.Dora = False,
    lora_dropout: options.LoraDropout = False,
    peft: options.Peft = None,
    virtual_tokens: options.VirtualTokens = None,
    load_in_4bit: options.LoadIn4Bit = False,
    double_quant: options.DoubleQuant = False,
    trainable_parameters: options.TrainableParameters = None,
    freeze: options.Freeze = None,
    chunked_loss: options.ChunkedLoss = False,
    liger: options.Liger = False,
    packing: options.Packing = False,
    gpu: options.Gpu = None,
    gpu_memory: options.GpuMemory = None,
    host_memory: options.HostMemory = None,
    fit: options.FitInto = None,
    details: options.Details = False,
    explain: options.Explain = False,
    plot: options.Plot = None,
    output_format: options.OutputFormat = "text",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Estimate the memory of a training run from formulas. Exits with 1 if it does not fit.

    Sizes may be lists, such as --zero-stage 0,1,2,3: then zerokit prints one line per combination.
    """
    from zerokit.estimation import Question
    from zerokit.estimation.api import as_model
    from zerokit.hardware.cluster import Cluster

    as_json = json_on_stdout(output, output_format)
    output = not_stdout(output)
    _check_files(plot, output, force=force)
    axes = _axes(zero_stage=zero_stage, num_gpus=num_gpus, micro_batch_size=micro_batch_size, seq_len=seq_len)
    card = _card(gpu, gpu_memory, fit)
    host_bytes = None if host_memory is None else memory_size(host_memory, "--host-memory")
    shape = as_model(model)
    question = Question(
        model=shape,
        cluster=Cluster(axes.num_gpus[0], gpus_per_node, card, host_bytes),
        ds_config=ds_config,
        target=target,
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
        precision=precision,
        eval_batch_size=eval_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        gradient_checkpointing=gradient_checkpointing,
        attention=attention,
        optimizer=optimizer,
        **_adapter(peft, virtual_tokens, lora_rank, lora_targets, dora, lora_dropout, shape),
        load_in_4bit=load_in_4bit,
        double_quant=double_quant,
        num_trainable_parameters=_count(trainable_parameters),
        frozen_modules=tuple(freeze or ()),
        chunked_loss="liger" if liger else "zerokit" if chunked_loss else None,
        packing=packing,
    )
    _answer(question, axes, fit is not None, details, explain, plot, as_json, output)


def _axes(**given: str | None) -> Axes:
    from zerokit.estimation import Axes

    return Axes(**{name: options.sizes(text, *options.SIZES[name]) for name, text in given.items()})


def _count(text: str | None) -> int | None:
    from zerokit.units import parse_count

    try:
        return None if text is None else parse_count(text)
    except ZerokitError as error:
        raise ConfigError(error.message, where="--trainable-parameters", hint=error.hint) from None


def _answer(
    question: Question,
    axes: Axes,
    find: bool,
    details: bool,
    explain: bool,
    plot: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    from zerokit.estimation import Runs, find_limits, sweep, verdict
    from zerokit.estimation.as_json import as_data, sweep_data
    from zerokit.reporting.verdicts import exit_code

    if axes.varied and (find or explain):
        raise ConfigError(
            "is for one run, and lists are given",
            where="--fit" if find else "--explain",
            hint=f"Give one value for {' and '.join(axes.varied)}",
        )
    memory = question.cluster.gpu_memory_bytes
    runs = Runs()
    estimates = sweep(question, axes, runs)
    answers = [(one, None if memory is None else verdict(one, memory)) for one in estimates]
    limits = None
    if find and memory is not None:
        limits = find_limits(next(axes.questions(question)), memory, runs)
    data = sweep_data(answers) if axes.varied else as_data(*answers[0], limits)
    if plot is not None:
        from zerokit.estimation.plot import write_plot

        write_plot(estimates, plot, memory)
    if output is not None:
        write_file(output, to_json(data), follow_links=True)
    if as_json:
        print_json(data)
    else:
        _print_text(answers, axes, limits, details, explain)
    raise typer.Exit(exit_code(fit.verdict for _, fit in answers if fit is not None))


def _print_text(
    answers: list[tuple[Estimate, Fit | None]],
    axes: Axes,
    limits: Limits | None,
    details: bool,
    explain: bool,
) -> None:
    from zerokit.estimation.explain import print_explanation
    from zerokit.estimation.table import print_estimate, print_sweep

    if explain:
        print_explanation(answers[0][0])
    elif axes.varied:
        print_sweep(answers, axes.varied)
    else:
        print_estimate(*answers[0], limits, details=details)


def _adapter(
    method: PeftMethod | None,
    count: int | None,
    rank: int | None,
    targets: str | None,
    dora: bool,
    dropout: bool,
    model: ModelShape | int,
) -> dict[str, Any]:
    """The one that is asked for, by its name in a question."""
    from zerokit.memory import Ia3, LearnedTokens, Lora

    if count is not None and method not in get_args(LearnedTokensMethod):
        hint = f"Give --peft, too: {', '.join(get_args(LearnedTokensMethod))}"
        raise ConfigError("no tokens are learned", where="--virtual-tokens", hint=hint)
    if method is not None and rank is not None:
        raise ConfigError("two adapters are given", where="--peft and --lora-rank", hint="Give one of them")
    for option, given in (("--dora", dora), ("--lora-dropout", dropout)):
        if given and rank is None:
            raise ConfigError("LoRA is not asked for", where=option, hint="Give --lora-rank, and no --peft")
    if targets is not None and rank is None and method != "ia3":
        hint = "Give --lora-rank, or --peft ia3"
        raise ConfigError("no adapter with targets is asked for", where="--lora-targets", hint=hint)
    names = tuple(name.strip() for name in (targets or "").split(",") if name.strip())
    chosen = {} if targets is None else {"target_modules": names}
    if rank is not None:
        return {"lora": Lora(rank, **chosen, dora=dora, dropout=dropout)}
    if method is None:
        return {}
    if method == "ia3":
        return {"ia3": Ia3(**chosen)}
    return {"learned_tokens": LearnedTokens.of(method, count or 20, model)}


def _card(gpu: str | None, gpu_memory: str | None, fit: str | None) -> Gpu | None:
    card = chosen_gpu(gpu, gpu_memory)
    if card is not None and fit is not None:
        both = ("--gpu" if gpu is not None else "--gpu-memory") + " and --fit"
        raise ConfigError("more than one says how much memory there is", where=both, hint="Give one of them")
    note_caveat(card)
    return card if fit is None else some_gpu(None, memory_size(fit, "--fit"))


def _check_files(plot: Path | None, output: Path | None, *, force: bool) -> None:
    if plot is not None:
        from zerokit.reporting.plots import check_plot

        check_plot(plot)
    for file in (plot, output):
        if file is not None:
            check_writable(file, force=force, follow_links=True)

"""``zerokit estimate``: the memory of a training run, without running it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import typer

from zerokit.choices import LearnedTokensMethod
from zerokit.cli.command import common_options, with_options
from zerokit.cli.estimate_options import CARD, SIZES, EstimateOptions, sizes
from zerokit.cli.gpu_options import chosen_gpus, memory_size, note_caveat
from zerokit.cli.output import json_on_stdout, not_stdout, print_json, to_json
from zerokit.errors import ConfigError, ZerokitError
from zerokit.files import check_writable, write_file

if TYPE_CHECKING:
    from zerokit.estimation import Advice, Axes, Fit, Limits, Question
    from zerokit.hardware.gpus import Gpu
    from zerokit.memory import Estimate
    from zerokit.models import ModelShape


@with_options(EstimateOptions)
def estimate(options: EstimateOptions) -> None:
    """Estimate the memory of a training run from formulas. Exits with 1 if it does not fit.

    Sizes may be lists, such as --zero-stage 0,1,2,3: then zerokit prints one line per combination.
    """
    from zerokit.estimation import Question
    from zerokit.estimation.api import as_model
    from zerokit.hardware.cluster import Cluster

    as_json = json_on_stdout(options.output, options.output_format)
    options = replace(options, output=not_stdout(options.output))
    _check_files(options)
    cards = _cards(options)
    axes = _axes(options, cards)
    host_bytes = memory_size(options.host_memory, "--host-memory")
    shape = as_model(options.model)
    chunked_loss = "liger" if options.liger else "zerokit" if options.chunked_loss else None
    question = Question(
        **common_options(options, Question)
        | _adapter(options, shape)
        | {
            "model": shape,
            "cluster": Cluster(axes.num_gpus[0], options.gpus_per_node, None, host_bytes),
            "num_trainable_parameters": _count(options.trainable_parameters),
            "frozen_modules": tuple(options.freeze or ()),
            "chunked_loss": chunked_loss,
        }
        | dict.fromkeys(SIZES.keys() - {"num_gpus"})  # the axes have them, and the cards
    )
    _answer(question, axes, options, as_json=as_json)


def _axes(options: EstimateOptions, cards: list[Gpu]) -> Axes:
    from zerokit.estimation import Axes

    given = {name: sizes(getattr(options, name), *limits) for name, limits in SIZES.items()}
    return Axes(**given, gpu=tuple(cards))


def _count(text: str | None) -> int | None:
    from zerokit.units import parse_count

    try:
        return None if text is None else parse_count(text)
    except ZerokitError as error:
        raise ConfigError(error.message, where="--trainable-parameters", hint=error.hint) from None


def _answer(question: Question, axes: Axes, options: EstimateOptions, *, as_json: bool) -> None:
    from zerokit.estimation import Runs, advise, find_limits, sweep, verdict
    from zerokit.estimation.advice import plain_torch
    from zerokit.estimation.as_json import as_data, sweep_data
    from zerokit.reporting.verdicts import exit_code

    find = options.fit is not None
    if axes.varied and (find or options.explain):
        raise ConfigError(
            "is for one run, and lists are given",
            where="--fit" if find else "--explain",
            hint=f"Give one value for {' and '.join(axes.varied)}",
        )
    runs = Runs()
    alone = None if axes.varied else next(axes.questions(question))
    estimates = sweep(question, axes, runs)
    answers: list[tuple[Estimate, Fit | None]] = []
    for one in estimates:
        size = one.run.cluster.gpu_memory_bytes
        answers.append((one, None if size is None else verdict(one, size)))
    memory = axes.gpu[0].memory_bytes if len(axes.gpu) == 1 else None
    limits = None
    if alone is not None and find and memory is not None:
        limits = find_limits(alone, memory, runs)
    advice = []
    if alone is not None and (fit := answers[0][1]) is not None:
        advice = advise(alone, answers[0][0], fit, runs)
    plain = None
    if alone is not None and not as_json and not options.explain:
        plain = plain_torch(alone, answers[0][0], runs)
    data = sweep_data(answers) if axes.varied else as_data(*answers[0], limits, advice)
    if options.plot is not None:
        from zerokit.estimation.plot import write_plot

        write_plot(estimates, options.plot, memory)
    if options.output is not None:
        write_file(options.output, to_json(data), follow_links=True)
    if as_json:
        print_json(data)
    else:
        _print_text(answers, axes, limits, advice, plain, options)
    raise typer.Exit(exit_code(fit.verdict for _, fit in answers if fit is not None))


def _print_text(
    answers: list[tuple[Estimate, Fit | None]],
    axes: Axes,
    limits: Limits | None,
    advice: list[Advice],
    plain: Estimate | None,
    options: EstimateOptions,
) -> None:
    from zerokit.estimation.explain import print_explanation
    from zerokit.estimation.table import print_estimate, print_sweep

    if options.explain:
        print_explanation(answers[0][0])
    elif axes.varied:
        print_sweep(answers, axes.varied)
    else:
        print_estimate(*answers[0], limits, advice, plain, details=options.details)


def _adapter(options: EstimateOptions, model: ModelShape | int) -> dict[str, Any]:
    """Return the requested adapter by its name in a question."""
    from zerokit.memory import Ia3, LearnedTokens, Lora

    method, rank, count, targets = (
        options.peft,
        options.lora_rank,
        options.virtual_tokens,
        options.lora_targets,
    )
    if count is not None and method not in get_args(LearnedTokensMethod):
        hint = f"Give --peft, too: {', '.join(get_args(LearnedTokensMethod))}"
        raise ConfigError("no tokens are learned", where="--virtual-tokens", hint=hint)
    if method is not None and rank is not None:
        raise ConfigError("two adapters are given", where="--peft and --lora-rank", hint="Give one of them")
    for option, given in (("--dora", options.dora), ("--lora-dropout", options.lora_dropout)):
        if given and rank is None:
            raise ConfigError("LoRA is not requested", where=option, hint="Give --lora-rank, and no --peft")
    if targets is not None and rank is None and method != "ia3":
        hint = "Give --lora-rank, or --peft ia3"
        raise ConfigError("no adapter with targets is requested", where="--lora-targets", hint=hint)
    names = tuple(name.strip() for name in (targets or "").split(",") if name.strip())
    chosen = {} if targets is None else {"target_modules": names}
    if rank is not None:
        return {"lora": Lora(rank, **chosen, dora=options.dora, dropout=options.lora_dropout)}
    if method is None:
        return {}
    if method == "ia3":
        return {"ia3": Ia3(**chosen)}
    return {"learned_tokens": LearnedTokens.of(method, count or 20, model)}


def _cards(options: EstimateOptions) -> list[Gpu]:
    cards = chosen_gpus(options.gpu, options.gpu_memory)
    for card in cards:
        note_caveat(card)
    if options.fit is None:
        return cards
    if options.fit == CARD:
        if not cards:
            hint = "Name the card with --gpu, or write its memory: --fit 80GiB"
            raise ConfigError("no card is named", where="--fit", hint=hint)
        return cards
    if cards:
        other = "--gpu" if options.gpu is not None else "--gpu-memory"
        hint = f"Leave out the size after --fit for the memory of {other}, or leave out {other}"
        raise ConfigError("both set the memory of a GPU", where=f"{other} and --fit", hint=hint)
    return chosen_gpus(None, options.fit, "--fit")


def _check_files(options: EstimateOptions) -> None:
    if options.plot is not None:
        from zerokit.reporting.plots import check_plot

        check_plot(options.plot)
    for file in (options.plot, options.output):
        if file is not None:
            check_writable(file, force=options.force, follow_links=True)

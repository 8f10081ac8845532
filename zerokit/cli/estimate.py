"""``zerokit estimate``: the memory of a training run, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import typer

from zerokit.choices import LearnedTokensMethod
from zerokit.cli.asking import AskingCommand
from zerokit.cli.command import common_options, with_options
from zerokit.cli.estimate_generation import check_generation, estimate_generation
from zerokit.cli.estimate_options import CARD, REQUIRED, SIZES, EstimateOptions, sizes
from zerokit.cli.gpu_options import chosen_gpus, memory_size, note_caveat
from zerokit.cli.options import count
from zerokit.cli.output import json_on_stdout, not_stdout, print_json
from zerokit.errors import ConfigError, ZerokitError
from zerokit.files import check_writable, json_text, write_file

if TYPE_CHECKING:
    from zerokit.estimation import Axes, Fit, Question
    from zerokit.hardware.gpus import Gpu
    from zerokit.memory import Estimate
    from zerokit.models import ModelShape
    from zerokit.reporting.terminal import Part

_SEQ_LEN = 2048


class EstimateCommand(AskingCommand):
    """Asks for missing options of ``zerokit estimate``."""

    questions: ClassVar[Mapping[str, str]] = {
        "model": "Which model? A name such as llama-3.1-8b, a Hub id, a folder, or a size such as 7B",
        "num_gpus": "How many GPUs in all?",
        "seq_len": "How many tokens in a sequence?",
        "zero_stage": "Which ZeRO stages, 0 to 3?",
    }
    examples: ClassVar[Mapping[str, str]] = {
        "model": "llama-3.1-8b",
        "num_gpus": "--num-gpus 8",
        "seq_len": "--seq-len 4096",
        "zero_stage": "--zero-stage 3 (or --ds-config FILE)",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; ``--fit`` needs no size.

        Raises:
            ZerokitError: the word after ``--fit`` is not a size, or ``--gpu`` is given twice.
        """
        words = list(args)
        for place, word in enumerate(words):
            if word != "--fit":
                continue
            if place + 1 == len(words) or words[place + 1].startswith("-"):
                words[place] = f"--fit={CARD}"
                continue
            try:
                memory_size(words[place + 1], "--fit")
            except ZerokitError as error:
                error.hint = "Write it like 80GiB. For the memory of --gpu put --fit last"
                raise
        self._refuse_repeated_cards(words)
        return super().parse_args(ctx, words)

    def _refuse_repeated_cards(self, words: list[str]) -> None:
        """Refuse ``--gpu a --gpu b``: click would keep the last one. Sizes may be given twice."""
        cards = []
        for word, following in zip(words, [*words[1:], ""], strict=False):
            if word == "--gpu" or word.startswith("--gpu="):
                cards.append(following if word == "--gpu" else word.removeprefix("--gpu="))
        if len(cards) > 1:
            raise ZerokitError("is given more than once", where="--gpu", hint=f"Write --gpu {','.join(cards)}")

    def check_given(self, given: Mapping[str, Any]) -> None:
        chosen_gpus(given.get("gpu"), given.get("gpu_memory"))
        for name, bounds in SIZES.items():
            sizes(given.get(name), *bounds)
        if given.get("model") is not None:
            positions(given["model"])

    def check_answer(self, name: str, text: str) -> None:
        if name == "model":
            positions(text)
        else:
            sizes(text, "", *SIZES[name][1:])

    def default(self, name: str, given: Mapping[str, Any]) -> str | None:
        """One GPU, short sequences, all stages."""
        if name == "seq_len":
            return str(min(_SEQ_LEN, positions(given["model"]) or _SEQ_LEN))
        return {"num_gpus": "1", "zero_stage": _stages(given)}.get(name)


COMMAND = EstimateCommand


def _stages(given: Mapping[str, Any]) -> str:
    """All stages that the options allow; one stage if the answer is about one run."""
    one_run = given.get("explain") or given.get("fit")
    if one_run or given.get("offload_param") or given.get("offload_optimizer") == "nvme":
        return "3"
    return "1,2,3" if given.get("offload_optimizer") else "0,1,2,3"


def positions(model: str) -> int | None:
    """The maximum sequence length of a model, if known. Raises ZerokitError: there is no such model."""
    from zerokit.estimation.api import as_model

    return getattr(as_model(model), "max_position_embeddings", None)


@with_options(EstimateOptions, "estimate", **REQUIRED)
def estimate(options: EstimateOptions) -> None:
    """Estimate the memory of a training run, or of generation, from formulas. Exits with 1 if it does not fit.

    Sizes may be lists, such as --zero-stage 0,1,2,3: then zerokit prints one line per combination.
    """
    from zerokit.estimation import Axes, Question
    from zerokit.estimation.api import as_model
    from zerokit.hardware.cluster import Cluster, Parallelism

    as_json = json_on_stdout(options.output, options.output_format)
    options = replace(options, output=not_stdout(options.output))
    _check_files(options)
    check_generation(options)
    if options.generate:
        estimate_generation(options, as_json=as_json)
    cards = _cards(options)
    lists = {name: sizes(getattr(options, name), *limits) for name, limits in SIZES.items()}
    axes = Axes(**lists, gpu=tuple(cards))
    host_bytes = memory_size(options.host_memory, "--host-memory")
    shape = as_model(options.model)
    chunked_loss = "liger" if options.liger else "zerokit" if options.chunked_loss else None
    question = Question(
        **common_options(options, Question)
        | _adapter(options, shape)
        | {
            "model": shape,
            "cluster": Cluster(axes.num_gpus[0], options.gpus_per_node, None, host_bytes),
            "parallelism": Parallelism(options.sequence_parallel, options.tensor_parallel),
            "num_trainable_parameters": count(options.trainable_parameters, "--trainable-parameters"),
            "frozen_modules": tuple(options.freeze or ()),
            "chunked_loss": chunked_loss,
        }
        | dict.fromkeys(SIZES.keys() - {"num_gpus"})  # the axes have them, and the cards
    )
    _answer(question, axes, options, as_json=as_json)


def _answer(question: Question, axes: Axes, options: EstimateOptions, *, as_json: bool) -> None:
    from zerokit.estimation import Runs, advise, find_limits, sweep, verdict
    from zerokit.estimation.advice import plain_torch
    from zerokit.estimation.as_json import as_data, sweep_data
    from zerokit.estimation.explain import explanation
    from zerokit.estimation.fit import judge_given_host
    from zerokit.estimation.table import estimate_parts, sweep_parts
    from zerokit.reporting.terminal import show
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
    answers: list[tuple[Estimate, Fit | None]] = []
    for one in sweep(question, axes, runs):
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
        from zerokit.reporting.page import write_picture

        first = data["sweep"][0] if axes.varied else data
        write_picture(options.plot, "memory", data, first["model"]["name"])
    if options.html is not None:
        from zerokit.reporting.page import write_page

        write_page(options.html, data)
    if options.output is not None:
        write_file(options.output, json_text(data), follow_links=True)
    if as_json:
        print_json(data)
    else:
        if options.explain:
            parts: Iterator[Part] = explanation(answers[0][0])
        elif axes.varied:
            parts = sweep_parts(answers, axes.varied)
        else:
            parts = estimate_parts(*answers[0], limits, advice, plain, details=options.details)
        show(parts)
    is_host_judged = alone is not None and not as_json and not options.explain  # then its verdict is printed
    fits = [judge_given_host(one) if fit is None and is_host_judged else fit for one, fit in answers]
    raise typer.Exit(exit_code(fit.verdict for fit in fits if fit is not None))


def _adapter(options: EstimateOptions, model: ModelShape | int) -> dict[str, Any]:
    """Return the requested adapter by its name in a question."""
    from zerokit.memory import Ia3, LearnedTokens, Lora

    method, rank, count, targets = (options.peft, options.lora_rank, options.virtual_tokens, options.lora_targets)
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
        from zerokit.reporting.page import check_picture

        check_picture(options.plot, "--plot")
    for file in (options.plot, options.html, options.output):
        if file is not None:
            check_writable(file, force=options.force, follow_links=True)

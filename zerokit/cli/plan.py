"""``zerokit plan``: which GPUs to rent for a training run, for how long and for how much."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import typer

from zerokit import choices
from zerokit.cli.asking import AskingCommand
from zerokit.cli.command import required_unless, with_options
from zerokit.cli.estimate_options import sizes
from zerokit.cli.gpu_options import memory_size
from zerokit.cli.options import count, network, seconds
from zerokit.cli.output import print_json
from zerokit.console import note, progress
from zerokit.errors import ConfigError, printable, visible
from zerokit.files import check_writable, write_file
from zerokit.reporting.terminal import show
from zerokit.units import format_bytes, parse_count, quantity

if TYPE_CHECKING:
    from zerokit.planning.compare import Comparison
    from zerokit.planning.job import PlanJob
    from zerokit.planning.offers import Offers
    from zerokit.planning.prices import CardPrice
    from zerokit.planning.report import PlanReport

_INTERRUPTED = 130
_OUTPUT = ("details", "output", "html", "output_format", "force")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    model: str | None = None
    recipe: Path | None = None
    data: list[str] | None = None
    tokens: str | None = None
    examples: str | None = None
    mean_tokens: float | None = None
    p95_tokens: float | None = None
    epochs: float | None = None
    seq_len: str | None = None
    global_batch_size: int | None = None
    sequence_parallel: int | None = None
    tensor_parallel: int | None = None
    lora_rank: int | None = None
    load_in_4bit: bool = False
    deadline: str | None = None
    budget: float | None = None
    gpu: str | None = None
    max_gpus: int | None = None
    have: str | None = None
    host_memory: str | None = None
    network: str | None = None
    nvme: bool = False
    spot: bool = False
    price: list[str] | None = None
    prices: Path | None = None
    setup: str = "45min"
    goal: Literal["cost", "time"] = "cost"
    rehearse: int = 3
    hardware: Path | None = None
    explain: str | None = None
    compare: tuple[Path, Path] | None = None
    no_input: bool = False
    details: bool = False
    output: Path | None = None
    html: Path | None = None
    output_format: choices.OutputFormat = "text"
    force: bool = False


class PlanCommand(AskingCommand):
    """Asks for missing options of ``zerokit plan``."""

    questions: ClassVar[Mapping[str, str]] = {
        "model": "Which model? A name such as llama-3.1-8b, a Hub id, or a folder",
        "tokens": "Which data? A file, or a number of tokens such as 200M",
    }
    examples: ClassVar[Mapping[str, str]] = {"model": "llama-3.1-8b", "tokens": "--tokens 200M"}

    def check_given(self, given: Mapping[str, Any]) -> None:
        if given.get("model") is not None:
            self.check_answer("model", given["model"])

    def check_answer(self, name: str, text: str) -> None:
        if name == "model":
            from zerokit.models import load_model_shape

            load_model_shape(text)
        elif not Path(text).exists() and parse_count(text) < 1:
            raise ConfigError(f"{text} tokens are none", hint="Write them like 200M")

    def words_of(self, param: Any, answer: str) -> list[str]:
        """A file is the value of ``--data``."""
        if param.name == "tokens" and Path(answer).exists():
            return ["--data", answer]
        return super().words_of(param, answer)


COMMAND = PlanCommand

_SHORTEST = 8
"""Tokens of a sequence."""


def _is_any_given(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda given: any(given.get(name) for name in names)


@with_options(
    PlanOptions,
    "plan",
    model=required_unless(
        _is_any_given("recipe", "compare"), "argument 'MODEL'", "Name a model, or the recipe of a run with --recipe"
    ),
    tokens=required_unless(
        _is_any_given("recipe", "compare", "data", "examples"),
        "option '--tokens'",
        "Pass it, or --data FILE, or --examples with --mean-tokens",
    ),
)
def plan(options: PlanOptions) -> None:
    """Plan a training run: which GPUs to rent, for how long and for how much. Exits with 1 if nothing meets
    the limits.

    The search needs no GPU and no torch. The best plans are rehearsed if zerokit[train] is installed.
    """
    _check(options)
    if options.compare is not None:
        from zerokit.planning.compare import compare

        found = compare(*options.compare)
        if options.output_format == "json":
            print_json(found.model_dump())
        else:
            show(_comparison_lines(found))
        return
    job, prices, offered = _job(options)
    report, complete = _plan(job, prices, offered, options)
    if options.html is not None or options.output is not None:
        _write(report, job, options)
    if options.output_format == "json":
        print_json(report.model_dump())
    else:
        from zerokit.planning.answer import answer_parts

        show(answer_parts(report, details=options.details))
    raise typer.Exit(_INTERRUPTED if not complete else 0 if report.meets_limits else 1)


def _plan(
    job: PlanJob, prices: dict[str, CardPrice], offered: Offers, options: PlanOptions
) -> tuple[PlanReport, bool]:
    """The report, and whether the user let it finish."""
    from zerokit.planning.answer import answer, explain
    from zerokit.planning.evaluate import Evaluator
    from zerokit.planning.finalists import rehearse_finalists
    from zerokit.planning.search import search_or_remember

    evaluator = Evaluator(job)
    with progress(transient=True) as bar:
        task = bar.add_task("plan", total=len(job.offers) + options.rehearse, note="")

        def tried(words: str) -> None:
            bar.update(task, advance=1, note=words)

        result = search_or_remember(job, evaluator, tried)
        number = options.rehearse if result.is_complete and options.explain is None else 0
        finalists = rehearse_finalists(job, result, evaluator, number, tried)
    if options.explain is not None:
        typer.echo(visible(explain(options.explain, job, result, evaluator)))
        raise typer.Exit
    complete = result.is_complete and finalists.is_complete
    report = answer(
        job,
        result,
        prices,
        not_sold=offered.not_sold,
        rehearsals=finalists.reports,
        command=_command(options),
        notes=[*_replaced(job), *finalists.notes],
        details=options.details,
    )
    return report, complete


def _replaced(job: PlanJob) -> Iterator[str]:
    """What a plan replaces in the user's recipe."""
    if "deepspeed" in job.recipe:
        yield "The recipe's ds_config is replaced by that of the plan."


def _write(report: PlanReport, job: PlanJob, options: PlanOptions) -> None:
    from zerokit.planning.folder import plan_files, write_folder
    from zerokit.reporting.page import page_text

    page = page_text(report.model_dump())
    if options.html is not None:
        write_file(options.html, page, follow_links=True)
    if options.output is not None and not report.plans:
        note(f"nothing fits: {printable(options.output)} is not written")
    elif options.output is not None:
        write_folder(options.output, plan_files(report, job, page), force=options.force)
        note(f"written: {printable(options.output)}. Start with its README.md")


def _command(options: PlanOptions) -> str:
    """The command that repeats the plan."""
    words = ["zerokit", "plan"]
    for one in fields(options):
        value = getattr(options, one.name)
        if value == one.default or one.name in _OUTPUT:
            continue
        flag = "--for" if one.name == "goal" else _flag(one.name)
        for each in value if isinstance(value, list) else [value]:
            words += [each] if one.name == "model" else [flag] if each is True else [flag, str(each)]
    return shlex.join(words)


def _job(options: PlanOptions) -> tuple[PlanJob, dict[str, CardPrice], Offers]:
    """The job, with the prices and offers that it was made of."""
    from zerokit.hardware.cluster import Parallelism
    from zerokit.hardware.gpus import add_gpu
    from zerokit.hardware.hardware_file import read_hardware
    from zerokit.memory import Lora
    from zerokit.models import load_model_shape
    from zerokit.planning.data import workload_of
    from zerokit.planning.job import Limits, PlanJob
    from zerokit.planning.offers import offers
    from zerokit.planning.prices import load_prices
    from zerokit.planning.recipe import adapter_of, num_checkpoints, read_recipe
    from zerokit.recipe.load import load_recipe

    recipe = {} if options.recipe is None else read_recipe(options.recipe)
    source = recipe["model"].get("path", recipe["model"].get("from_config")) if recipe else options.model
    lora, in_4_bits = adapter_of(recipe)
    if options.lora_rank is not None:
        lora, in_4_bits = Lora(options.lora_rank, "all-linear"), options.load_in_4bit
    limits = Limits(
        deadline_hours=None if options.deadline is None else _hours(options.deadline, "--deadline"),
        budget_usd=options.budget,
        has_nvme=options.nvme,
    )
    names = [] if options.gpu is None else [options.gpu]
    if options.hardware is not None:
        card = read_hardware(options.hardware, timed=True).gpu
        add_gpu(card)
        names = [] if options.have else [card.name]
    prices = load_prices(options.price or (), options.prices, spot=options.spot)
    offered = offers(
        prices,
        names=names,
        have=options.have,
        max_gpus=options.max_gpus,
        host_bytes=memory_size(options.host_memory, "--host-memory"),
        network_gbit_s=None if options.network is None else network(options.network, "--network"),
    )
    if options.hardware is not None and {one.gpu.name for one in offered.offered} != {card.name}:
        hint = f"Give --have with {card.name}, or leave one of them out"
        raise ConfigError(f"the file describes {card.name}", where="--hardware and --have", hint=hint)
    assert source is not None
    shape = load_model_shape(source)
    workload = workload_of(
        shape,
        model_name=source if isinstance(source, str) else None,
        data=options.data or (),
        recipe=None if options.recipe is None else load_recipe(options.recipe),
        tokens=count(options.tokens, "--tokens"),
        num_examples=count(options.examples, "--examples"),
        mean_tokens=options.mean_tokens,
        p95_tokens=options.p95_tokens,
        seq_len=_seq_len(options.seq_len),
        global_batch_size=options.global_batch_size,
        epochs=options.epochs,
    )
    groups = dict(recipe.get("parallel", {}))
    for name, size in (("sequence", options.sequence_parallel), ("tensor", options.tensor_parallel)):
        groups |= {} if size is None else {name: size}
    is_evaluated = recipe.get("training", {}).get("eval_strategy") == "epoch"
    job = PlanJob(
        model=shape,
        model_name=source if isinstance(source, str) else shape.name,
        workload=workload,
        offers=offered.offered,
        lora=lora,
        load_in_4bit=in_4_bits,
        parallelism=Parallelism(**groups) if groups else None,
        limits=limits,
        goal=options.goal,
        setup_hours=_hours(options.setup, "--setup"),
        num_evaluations=round(workload.epochs) if is_evaluated else 0,
        num_checkpoints=num_checkpoints(recipe, workload),
        hardware=options.hardware,
        recipe=recipe,
        data_files=tuple(options.data or ()),
    )
    return job, prices, offered


def _seq_len(text: str | None) -> int | None:
    """A length like 4096 or 4k."""
    lengths = sizes(text, "--seq-len", _SHORTEST)
    if lengths[1:]:
        raise ConfigError("several lengths", where="--seq-len", hint="Give one")
    return lengths[0] if lengths else None


def _hours(text: str, option: str) -> float:
    if text.strip().replace(".", "", 1).isdigit():
        raise ConfigError(f"'{text}' has no unit", where=option, hint=f"Write it like {text}h, or 45min")
    return seconds(text, option) / 3600


def _check(options: PlanOptions) -> None:
    """Refuse options that contradict each other, and files that cannot be written, before any work."""
    for first, second in _CONTRADICTIONS:
        if _is_given(options, first) and _is_given(options, second):
            raise ConfigError(
                "contradict each other", where=f"{_flag(first)} and {_flag(second)}", hint="Give one of them"
            )
    for option, needed in (
        ("mean_tokens", "examples"),
        ("examples", "mean_tokens"),
        ("p95_tokens", "examples"),
        ("load_in_4bit", "lora_rank"),
    ):
        if _is_given(options, option) and not _is_given(options, needed):
            raise ConfigError(f"needs {_flag(needed)}", where=_flag(option), hint=f"Give {_flag(needed)}, too")
    if options.output is not None:
        from zerokit.planning.folder import check_folder

        check_folder(options.output, force=options.force)
    if options.html is not None:
        check_writable(options.html, force=options.force, follow_links=True)


_CONTRADICTIONS = (
    ("model", "recipe"),
    *(("recipe", name) for name in ("data", "tokens", "examples", "lora_rank")),
    *(("data", name) for name in ("tokens", "examples")),
    ("tokens", "examples"),
    ("gpu", "hardware"),
    *(("explain", name) for name in ("output", "html")),
    *(("compare", name) for name in ("model", "recipe", "output", "html", "explain")),
)


def _is_given(options: PlanOptions, name: str) -> bool:
    return getattr(options, name) not in (None, False, [], ())


def _flag(name: str) -> str:
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


def _comparison_lines(found: Comparison) -> Iterator[str]:
    within = sum(one.is_within for one in found.figures)
    yield (
        f"{within} of {quantity(len(found.figures), 'figure')} within the predicted range: "
        f"plan {found.plan}, {found.num_gpus} x {found.gpu}"
    )
    for one in found.figures:
        low, high, measured = (
            format_bytes(int(number)) if one.figure == "gpu_memory_bytes" else f"{number:,.4g}"
            for number in (one.predicted.low, one.predicted.high, one.measured)
        )
        verdict = "within" if one.is_within else f"predicted {one.error:+.0%}"
        yield f"{one.figure.replace('_', ' ')}: {measured} measured, {low} to {high} predicted ({verdict})"
    yield from (f"differs: {difference}" for difference in found.differences)

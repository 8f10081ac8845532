"""The quickstart's seven steps, each told in plain words."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit import __version__, console
from zerokit.checkpoint.source import check_checkpoint
from zerokit.distributed.extensions import check_compiler
from zerokit.distributed.group import count_gpus, device_precision
from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.quickstart.launch import home, run, words_of
from zerokit.quickstart.plan import (
    ANOTHER_QUESTION,
    GENERATION_BATCH_SIZE,
    MAX_NEW_TOKENS,
    QUESTIONS,
    ZERO_STAGE,
    Devices,
    Plan,
    Stage,
    make_plan,
    write_plan,
)
from zerokit.reporting.tables import table
from zerokit.reporting.terminal import Command, heading, show
from zerokit.units import format_bytes, format_count, format_seconds, quantity

if TYPE_CHECKING:
    from zerokit.reporting.terminal import Part

_CPU_RANKS = 2


def quickstart(folder: Path, *, fresh: bool = False, max_steps: int | None = None) -> None:
    """Train, fine-tune and generate on whatever this machine has.

    Args:
        folder: where everything is written.
        fresh: train again what an earlier quickstart has trained.
        max_steps: cut both training runs short.

    Raises:
        ZerokitError: this machine lacks something, or a run failed.
    """
    start = time.monotonic()
    say = console.note
    say("[1/7] Looking for devices")
    devices = find_devices()
    if devices.kind == "CPU":
        check_compiler()
    say(f"      {_describe(devices)}")

    plan = make_plan(folder.resolve(), devices, max_steps)
    say("[2/7] Writing a ds_config and checking it")
    write_plan(plan)
    say(f"      ZeRO-{ZERO_STAGE}, no errors: {_shown(plan.ds_config_file)}")

    say("[3/7] Memory to expect per rank, before anything is trained")
    _state_memory(plan)

    reports = [
        _train(plan, stage, number, fresh=fresh) for number, stage in zip("45", plan.stages, strict=True)
    ]
    model = plan.stages[1].folder
    check_checkpoint(model, where=str(model))
    say(f"      {_shown(model)} loads with AutoModelForCausalLM.from_pretrained")

    say(f"[6/7] Generating under ZeRO-3: {len(QUESTIONS)} questions, shared unevenly by the ranks")
    answers = _generate(plan)
    for answer in answers:
        text = f"Answer:{answer['completion'].rstrip()}"
        for line in ("", answer["prompt"].splitlines()[0], *text.splitlines()):
            say(f"      {line}".rstrip())

    say("")
    say("[7/7] Summary")
    show(summary(plan, reports, time.monotonic() - start))


def find_devices() -> Devices:
    """All GPUs there are, else two CPU ranks."""
    num_gpus = count_gpus()
    kind, num_ranks = ("GPU", num_gpus) if num_gpus else ("CPU", _CPU_RANKS)
    return Devices(kind, num_ranks, device_precision())


def _describe(devices: Devices) -> str:
    if devices.kind == "CPU":
        return f"no GPU; {devices.num_ranks} CPU ranks that talk over gloo, in {devices.precision}"
    return f"{quantity(devices.num_ranks, 'GPU')}, in {devices.precision}"


def _state_memory(plan: Plan) -> None:
    answer = plan.estimate(plan.stages[0])
    device, states = answer.device, answer.model_states
    parts = " + ".join(f"{state.symbols} {state.name}" for state in states.each)
    count, ranks = format_count(answer.num_parameters), plan.devices.num_ranks
    console.note(
        f"      model states of {count} parameters on {ranks} ranks: {parts} = "
        f"{format_bytes(states.total_bytes)}"
    )
    peak = format_bytes(device.peak_bytes)
    console.note(f"      with activations the peak is {peak} (in the phase '{device.peak_phase}')")


def _train(plan: Plan, stage: Stage, number: str, *, fresh: bool) -> dict[str, Any]:
    """Run one training stage, or take over what an earlier run has trained with the same recipe."""
    report = None if fresh else _finished(stage)
    if report is not None:
        console.note(f"[{number}/7] Reusing {_shown(stage.folder)}, trained before with the same recipe")
        return report
    console.note(f"[{number}/7] Training: {stage.what}")
    run(
        plan.devices.num_ranks,
        [*words_of("train"), "--recipe", _shown(stage.recipe_file), "--force"],
        stage.folder.with_suffix(".log"),
        stage.folder / "metrics.jsonl",
        what=stage.name,
    )
    report = _read_report(stage)
    console.note(
        f"      held-out loss {report['loss_before']:.2f} -> {report['loss_after']:.2f} in "
        f"{format_seconds(report['train_seconds'])}"
    )
    return report


def _finished(stage: Stage) -> dict[str, Any] | None:
    """The report of an earlier run with this recipe and version whose model is intact, or None."""
    try:
        report = _read_report(stage)
        check_checkpoint(stage.folder, where=str(stage.folder))
    except (OSError, ValueError, ZerokitError):
        return None
    same = report.get("recipe") == stage.recipe and report.get("zerokit_version") == __version__
    return report if same else None


def _read_report(stage: Stage) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((stage.folder / "run.json").read_text(encoding="utf-8"))
    return report


def _generate(plan: Plan) -> list[dict[str, Any]]:
    prompts = plan.folder / "questions.jsonl"
    write_file(prompts, "".join(json.dumps({"prompt": text}) + "\n" for text in QUESTIONS))
    words = [
        *words_of("generate"),
        *("--model", _shown(plan.stages[1].folder)),
        *("--prompts", _shown(prompts)),
        *("-o", _shown(plan.answers_file), "--force"),
        *("--batch-size", str(GENERATION_BATCH_SIZE)),
        *("--max_new_tokens", str(MAX_NEW_TOKENS)),
    ]
    run(plan.devices.num_ranks, words, plan.folder / "generate.log", None, what="generate")
    return [json.loads(line) for line in plan.answers_file.read_text(encoding="utf-8").splitlines()]


def summary(plan: Plan, reports: list[dict[str, Any]], seconds: float) -> Iterator[Part]:
    """What came out of it, and what to type next.

    Args:
        plan: what was run.
        reports: the ``run.json`` of its stages.
        seconds: that all took.
    """
    rows = [
        (
            stage.name,
            f"{report['loss_before']:.2f} -> {report['loss_after']:.2f}",
            f"{report['tokens_per_second']:,.0f}",
            plan.estimate(stage).device.peak_bytes,
            int(report["peak_memory_bytes"]),
        )
        for stage, report in zip(plan.stages, reports, strict=True)
    ]
    yield table("", ("run", "held-out loss", "tokens/s", "peak expected", "measured"), rows)
    if plan.devices.kind == "CPU":
        yield "Expected: tensors. Measured, on CPU: the growth of a process and its libraries."
    for stage in plan.stages:
        yield f"{stage.name}: {_shown(stage.folder)}"
    yield f"answers: {_shown(plan.answers_file)}"
    yield f"Everything took {format_seconds(seconds)}."
    yield ""
    own = _shown(plan.own_recipe_file)
    train, generate = words_of("train"), words_of("generate")
    place = f", in {home()} after 'source .venv/bin/activate'" if train == ["launch/train.py"] else ""
    deepspeed = ("deepspeed", "--num_gpus", str(plan.devices.num_ranks))
    yield heading(f"Next{place}, ask it more:")
    asked = ("--model", _shown(plan.stages[1].folder), "--prompt", ANOTHER_QUESTION)
    yield _command(*deepspeed, *generate, *asked, "--max_new_tokens", str(MAX_NEW_TOKENS))
    yield heading(f"Or train on your own model and data, which you name in {own}, and ask that:")
    chosen = ("--zero-stage", "3", "--offload-optimizer", "cpu")
    yield _command("zerokit", "config", *chosen, "-o", "my_ds_config.json")
    yield _command(*deepspeed, *train, "--recipe", own, "--deepspeed", "my_ds_config.json")
    yield _command(*deepspeed, *generate, "--model", "runs/mine", "--prompt", "Hello")


def _command(*words: str) -> Command:
    return Command([shlex.quote(word) for word in words])


def _shown(path: Path) -> str:
    """A path as a person would type it where the commands are run."""
    root = home()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

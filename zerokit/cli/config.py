"""``zerokit config``: write a valid ds_config."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from zerokit import choices
from zerokit.cli.command import common_options, with_options
from zerokit.cli.gpu_options import chosen_gpu, note_caveat
from zerokit.cli.output import not_stdout, print_json
from zerokit.console import note
from zerokit.documents import dotted
from zerokit.errors import ZerokitError
from zerokit.files import check_writable, json_text, write_file
from zerokit.hardware import GPUS_PER_NODE

if TYPE_CHECKING:
    from zerokit.hardware.cluster import Cluster
    from zerokit.hardware.gpus import Gpu
    from zerokit.models import ModelShape
    from zerokit.writing.build import Built
    from zerokit.writing.hyperparameters import Choice
    from zerokit.writing.request import Decisions


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    preset: str | None = None
    zero_stage: int | None = None
    offload_optimizer: choices.OffloadDevice | None = None
    offload_param: choices.OffloadDevice | None = None
    nvme_path: str | None = None
    zero_plus_plus: bool = False
    hpz_size: int | None = None
    inference: bool = False
    precision: Literal["auto", choices.Precision] | None = None
    optimizer: choices.OptimizerName | None = None
    scheduler: choices.SchedulerName | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    total_steps: int | None = None
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    gradient_clipping: float | None = None
    activation_checkpointing: choices.ActivationCheckpointing | None = None
    target: choices.Target = "trainer"
    model: str | None = None
    num_gpus: int | None = None
    gpus_per_node: int = GPUS_PER_NODE
    gpu: str | None = None
    gpu_memory: str | None = None
    explain: bool = False
    output: Path | None = None
    accelerate_yaml: Path | None = None
    force: bool = False
    output_format: choices.OutputFormat = "text"


@with_options(ConfigOptions, "config", output=not_stdout)
def config(options: ConfigOptions) -> None:
    """Write a valid ds_config with a reason for every key.

    Without --num-gpus it fits any number of GPUs, and without --model any model. With --model, --num-gpus and
    --gpu, but no stage, zerokit chooses the stage and offload that fit.
    """
    from zerokit.hardware.cluster import Cluster
    from zerokit.models import load_model_shape
    from zerokit.resolving.run import Run
    from zerokit.writing.build import build
    from zerokit.writing.presets import with_preset
    from zerokit.writing.request import Decisions

    card = chosen_gpu(options.gpu, options.gpu_memory)
    note_caveat(card)
    cluster = Cluster(options.num_gpus, options.gpus_per_node, card)
    cluster.check_given_nodes()
    shape = None if options.model is None else load_model_shape(options.model)
    chosen = common_options(options, Decisions)
    precision = options.precision or _usual_precision(options, card)
    if options.preset is None and options.zero_stage is None and not options.inference:
        chosen |= _chosen_zero(options, cluster, shape, precision)
    given = with_preset(options.preset, chosen)
    if options.precision is None and precision == "fp16" and given.get("zero_stage") == 0:
        precision = "bf16"  # stage 0 does not scale losses
    given["precision"] = None if precision == "auto" else precision
    decisions = Decisions(run=Run(target=options.target, cluster=cluster, model=shape), **given)
    built = build(decisions)
    if options.accelerate_yaml is not None:
        text = _launcher(decisions, options)
        write_file(options.accelerate_yaml, text, force=options.force, follow_links=True)
    _write(built, options)


def _usual_precision(options: ConfigOptions, card: Gpu | None) -> Literal["auto", choices.Precision]:
    """What the target chooses; for DeepSpeed alone the card's 16 bits, but for Muon bf16, as it scales no losses."""
    if options.target != "deepspeed":
        return "auto"
    return "bf16" if card is None or options.optimizer == "Muon" else card.half_precision


def _chosen_zero(
    options: ConfigOptions, cluster: Cluster, shape: ModelShape | None, precision: Literal["auto", choices.Precision]
) -> dict[str, Any]:
    """The stage and offload that fit, with the reason on stderr; empty without a model, GPUs or a card.

    Raises:
        ZerokitError: only one of the three is missing.
    """
    if shape is None or cluster.num_gpus is None or cluster.gpu is None:
        facts = {"--model": shape, "--num-gpus": cluster.num_gpus, "--gpu": cluster.gpu}
        missing = [option for option, fact in facts.items() if fact is None]
        if len(missing) == 1:
            hint = "Give it, or choose what ZeRO divides with --zero-stage or --preset"
            raise ZerokitError("is missing for zerokit to choose what ZeRO divides", where=missing[0], hint=hint)
        return {}
    from zerokit.estimation import Question
    from zerokit.estimation.choose import assumptions, choose_zero

    question = Question(
        model=shape,
        cluster=cluster,
        micro_batch_size=options.micro_batch_size,
        precision=None if precision == "auto" else precision,
        target=options.target,
    )
    offload = {"offload_optimizer": options.offload_optimizer, "offload_param": options.offload_param}
    settings, why = choose_zero(question, offload)
    note(f"zerokit: note: {why}. It needs {assumptions(question)}; zerokit estimate answers for other sizes")
    chosen = frozenset(name for name in settings if offload.get(name) is None)
    return {**settings, "chosen": chosen}


def _launcher(decisions: Decisions, options: ConfigOptions) -> str:
    """The text of the launch config, after checking that the ds_config can be written too."""
    from zerokit.writing.accelerate_launch import accelerate_yaml

    if options.output is None:
        raise ZerokitError(
            "accelerate reads the ds_config from a file", where="--accelerate-yaml", hint="Name that file with -o"
        )
    check_writable(options.output, force=options.force, follow_links=True)
    return accelerate_yaml(decisions, str(options.output))


def _write(built: Built, options: ConfigOptions) -> None:
    """The config to its file or stdout, the reasons to the other of stdout and stderr."""
    data, output = built.config.dump(), options.output
    if output is not None:
        write_file(output, json_text(data), force=options.force, follow_links=True)
    if options.explain and options.output_format == "json":
        print_json({"config": data, "choices": [_as_data(choice) for choice in built.choices]})
        return
    if output is None:
        print_json(data)
    if options.explain:
        for choice in built.choices:
            reason = _as_data(choice)
            value = json.dumps(reason["value"]) if reason["written"] else "(left out)"
            lines = f"{reason['path']}: {value}\n    {choice.why}\n    [{choice.source}]"
            typer.echo(lines, err=output is None)


def _as_data(choice: Choice) -> dict[str, Any]:
    from zerokit.writing.hyperparameters import LEFT_OUT

    written = choice.value is not LEFT_OUT
    return {
        "path": dotted(choice.path),
        "written": written,
        "value": choice.value if written else None,
        "why": choice.why,
        "source": choice.source,
    }

"""``zerokit config``: write a valid ds_config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zerokit.cli import config_options as options
from zerokit.cli.gpu_options import chosen_gpu, note_caveat
from zerokit.cli.output import print_json, to_json
from zerokit.errors import ZerokitError
from zerokit.files import check_writable, write_file
from zerokit.hardware import GPUS_PER_NODE

if TYPE_CHECKING:
    from zerokit.writing.build import Built
    from zerokit.writing.hyperparameters import Choice
    from zerokit.writing.request import Decisions


def config(
    preset: options.Preset = None,
    zero_stage: options.ZeroStage = None,
    offload_optimizer: options.OffloadOptimizer = None,
    offload_param: options.OffloadParam = None,
    nvme_path: options.NvmePath = None,
    zero_plus_plus: options.ZeroPlusPlus = False,
    hpz_size: options.HpzSize = None,
    inference: options.Inference = False,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    scheduler: options.Scheduler = None,
    learning_rate: options.LearningRate = None,
    warmup_steps: options.WarmupSteps = None,
    total_steps: options.TotalSteps = None,
    micro_batch_size: options.MicroBatchSize = None,
    gradient_accumulation_steps: options.GradientAccumulationSteps = None,
    gradient_clipping: options.GradientClipping = None,
    activation_checkpointing: options.ActivationCheckpointing = None,
    target: options.Target = "trainer",
    model: options.Model = None,
    num_gpus: options.NumGpus = None,
    gpus_per_node: options.GpusPerNode = GPUS_PER_NODE,
    gpu: options.Gpu = None,
    gpu_memory: options.GpuMemory = None,
    explain: options.Explain = False,
    output: options.Output = None,
    accelerate_yaml: options.AccelerateYaml = None,
    force: options.Force = False,
    output_format: options.OutputFormat = "text",
) -> None:
    """Write a valid ds_config with a reason for every key.

    Without --model it holds for any model, and without --num-gpus for any number of GPUs.
    """
    from zerokit.hardware.cluster import Cluster
    from zerokit.resolving.run import Run
    from zerokit.writing.build import build
    from zerokit.writing.presets import with_preset
    from zerokit.writing.request import Decisions

    card = chosen_gpu(gpu, gpu_memory)
    note_caveat(card)
    if precision is None:
        precision = "bf16" if target == "deepspeed" else "auto"
    given = {
        "zero_stage": zero_stage,
        "offload_optimizer": offload_optimizer,
        "offload_param": offload_param,
        "nvme_path": nvme_path,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "learning_rate": learning_rate,
        "warmup_steps": warmup_steps,
        "total_steps": total_steps,
        "micro_batch_size": micro_batch_size,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "gradient_clipping": gradient_clipping,
        "zero_plus_plus": zero_plus_plus,
        "hpz_size": hpz_size,
        "inference": inference,
        "activation_checkpointing": activation_checkpointing,
    }
    run = Run(target=target, cluster=Cluster(num_gpus, gpus_per_node, card), model=_shape(model))
    decisions = Decisions(
        run=run, precision=None if precision == "auto" else precision, **with_preset(preset, given)
    )
    built = build(decisions)
    if accelerate_yaml is not None:
        text = _launcher(decisions, output, force=force)
        write_file(accelerate_yaml, text, force=force, follow_links=True)
    _write(built, output, force=force, explain=explain, as_json=output_format == "json")


def _shape(model: str | None) -> Any:
    if model is None:
        return None
    from zerokit.models import load_model_shape

    return load_model_shape(model)


def _launcher(decisions: Decisions, output: Path | None, *, force: bool) -> str:
    """The text of the launch config, after checking that the ds_config can be written too."""
    from zerokit.writing.accelerate_launch import accelerate_yaml

    if output is None:
        raise ZerokitError(
            "accelerate reads the ds_config from a file",
            where="--accelerate-yaml",
            hint="Name that file with -o",
        )
    check_writable(output, force=force, follow_links=True)
    return accelerate_yaml(decisions, str(output))


def _write(built: Built, output: Path | None, *, force: bool, explain: bool, as_json: bool) -> None:
    """The config to its file or stdout, the reasons to the other of stdout and stderr."""
    data = built.config.dump()
    if output is not None:
        write_file(output, to_json(data), force=force, follow_links=True)
    if explain and as_json:
        print_json({"config": data, "choices": [_as_data(choice) for choice in built.choices]})
        return
    if output is None:
        print_json(data)
    if explain:
        for choice in built.choices:
            reason = _as_data(choice)
            value = json.dumps(reason["value"]) if reason["written"] else "(left out)"
            lines = f"{reason['path']}: {value}\n    {choice.why}\n    [{choice.source}]"
            typer.echo(lines, err=output is None)


def _as_data(choice: Choice) -> dict[str, Any]:
    from zerokit.documents import dotted
    from zerokit.writing.hyperparameters import LEFT_OUT

    written = choice.value is not LEFT_OUT
    return {
        "path": dotted(choice.path),
        "written": written,
        "value": choice.value if written else None,
        "why": choice.why,
        "source": choice.source,
    }

"""The recipe's key for optimizers, ``training.optim``: the Trainer's and DeepSpeed's."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.config.base import ZERO
from zerokit.distributed.group import count_gpus
from zerokit.distributed.run_policy import RunPolicy
from zerokit.errors import ConfigError, RecipeError
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.zero import offload_device
from zerokit.units import quantity

if TYPE_CHECKING:
    from transformers import TrainingArguments

_FOR_GPUS = {"adam": "fused_adam", "adamw": "fused_adam", "lamb": "fused_lamb", "lion": "fused_lion"}
"""Optimizers for which DeepSpeed compiles a CUDA kernel unless they are offloaded."""


def host_optimizer(ds_config: Mapping[str, Any]) -> str | None:
    """DeepSpeed's CPU optimizer for an offloaded one: ``Adam``, ``Adagrad`` or ``Lion``; None without
    offload.

    Source: `_configure_basic_optimizer` in deepspeed/runtime/engine.py. Without a section `optimizer` it is
    Adam: see :func:`check_offloaded_optimizer`.
    """
    if not _offloads(ds_config):
        return None
    name = str((ds_config.get("optimizer") or {}).get("type")).lower()
    return {"adagrad": "Adagrad", "lion": "Lion"}.get(name, "Adam")


def check_offloaded_optimizer(ds_config: Mapping[str, Any], optim: str, *, ds_where: str, where: str) -> None:
    """Refuse optimizers that accelerate would silently replace by Adam when they are offloaded (ConfigError).

    It replaces PyTorch's AdamW by DeepSpeed's with the same settings. For Adagrad it fails, because
    DeepSpeedCPUAdagrad does not accept `adamw_mode`. Source: `map_pytorch_optim_to_deepspeed` in accelerate
    utils/deepspeed.py (1.15).
    """
    if not _offloads(ds_config) or ds_config.get("zero_force_ds_cpu_optimizer") is False:
        return
    if "optimizer" in ds_config or optim in ("adamw_torch", "adamw_torch_fused"):
        return
    happens = "would be replaced by DeepSpeed's CPU Adam"
    if optim == "adagrad":
        happens = "cannot be made DeepSpeed's CPU Adagrad by accelerate"
    raise ConfigError(
        f"{optim} {happens}, because {ds_where} offloads the optimizer",
        where=where,
        hint="Use adamw_torch, deepspeed_adagrad, deepspeed_lion or deepspeed_sgd, or do not offload it",
    )


def check_zenflow(zero: Mapping[str, Any], *, resumes: bool, where: str) -> None:
    """Refuse ZenFlow if it would silently train something else (ConfigError).

    In stage 3 its hooks transpose each gathered matrix, but the engine has transposed only unpartitioned ones
    (`_initialize_zenflow_stage3_prologue` in deepspeed/runtime/zenflow/engine_stage3.py). No checkpoint has
    the states of important columns and deferred gradients, so a run cannot resume.
    """
    if not zero.get("zenflow"):
        return
    if zero.get("stage") == 3:
        raise ConfigError(
            "ZenFlow expects transposed matrices in stage 3, and those of a model that is partitioned as it "
            "is built are not",
            where=where,
            hint="Remove it: stages 1 and 2 scramble weights in releases since 0.19.7",
        )
    if resumes:
        raise ConfigError(
            "no checkpoint has what ZenFlow keeps of important gradients: the run would not go on as it was",
            where=where,
            hint="Begin another run from the checkpoint's weights, with --model and another output_dir",
        )


def check_optimizer(args: TrainingArguments, ds_config: Mapping[str, Any], stage: int, where: str) -> None:
    """Refuse an optimizer whose package is missing or that does not work with ZeRO (RecipeError)."""
    name = str(getattr(args.optim, "value", args.optim))
    on_matrices = any(word in name for word in _WHOLE_MATRICES)
    if "optimizer" in ds_config or (on_matrices and stage == 0):
        return
    works = "Use adamw_torch_fused, sgd, or one of deepspeed_adamw, deepspeed_adagrad, deepspeed_lion"
    if name == "adagrad" and stage:
        # stage_1_and_2.py and stage3.py initialize_optimizer_states; a step then fails at the second group.
        raise RecipeError(
            "DeepSpeed makes torch's Adagrad anew with all parameters in one group, where the Trainer has "
            f"two: in stage {stage} its first step fails",
            where=where,
            hint="Use deepspeed_adagrad",
        )
    if on_matrices:
        raise RecipeError(
            f"{name} works on whole matrices, and ZeRO stage {stage} gives an optimizer flat parts of them",
            where=where,
            hint=works,
        )
    try:
        _optimizer_of(args)
    except (ImportError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RecipeError(f"{name} cannot be made here: {reason}", where=where, hint=works) from error


_OF_OPTIMIZER = ("optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon")


def check_optimizer_keys(args: TrainingArguments, ds_config: Mapping[str, Any], loaded: LoadedRecipe) -> None:
    """Refuse keys of `training` that the optimizer does not read (RecipeError)."""
    name = str(getattr(args.optim, "value", args.optim))
    if any(word in name for word in _WHOLE_MATRICES):
        return
    is_deepspeeds = "optimizer" in ds_config
    for key in _OF_OPTIMIZER:
        if is_deepspeeds and key.startswith("adam_"):  # which the ds_config's params have
            continue
        default = type(args).__dataclass_fields__[key].default
        if key not in loaded.recipe.training or getattr(args, key) == default:
            continue
        without = copy.copy(args)
        vars(without)[key] = default
        if is_deepspeeds or _optimizer_of(without) == _optimizer_of(args):
            optimizer = f"DeepSpeed's {ds_config['optimizer'].get('type')}" if is_deepspeeds else name
            raise RecipeError(
                f"{key} has no effect: {optimizer} does not read it",
                where=loaded.where("training", key),
                hint="Remove it",
            )


def check_schedule(args: TrainingArguments, ds_config: Mapping[str, Any], where: str) -> None:
    """Refuse a learning rate schedule with missing or wrong arguments (RecipeError)."""
    import torch
    from transformers import get_scheduler

    if "scheduler" in ds_config:
        return
    steps = args.max_steps if args.max_steps > 0 else _MANY_STEPS
    try:
        get_scheduler(
            args.lr_scheduler_type,
            torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate),
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (TypeError, ValueError) as error:
        name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise RecipeError(
            f"the schedule {name} cannot be made: {error}", where=where, hint="Correct lr_scheduler_kwargs"
        ) from error


def warmup_warning(args: TrainingArguments, ds_config: Mapping[str, Any], steps: int) -> str | None:
    """A warning for a run that ends during warmup; None for others."""
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if "scheduler" in ds_config or schedule in _AT_ONCE or args.warmup_steps < max(1, steps):
        return None
    return (
        f"warning: training.warmup_steps is {args.warmup_steps:g} and the run has {quantity(steps, 'step')}: "
        "it ends before the learning rate is training.learning_rate"
    )


_AT_ONCE = ("constant", "reduce_lr_on_plateau", "greedy")
"""Schedules of the Trainer without a warm-up."""

_MANY_STEPS = 10**6
"""Steps to try a schedule with if epochs decide their number."""


def _optimizer_of(args: TrainingArguments) -> tuple[Any, dict[str, Any]]:
    from transformers import Trainer

    kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
    return kind, options


_WHOLE_MATRICES = ("galore", "apollo", "lomo")


def replace_fused_optimizer(ds_config: dict[str, Any], *, where: str) -> str | None:
    """Use torch's AdamW if DeepSpeed's cannot be compiled; returns a note. ConfigError for others."""
    section = ds_config.get("optimizer") or {}
    name = str(section.get("type", "")).lower()
    params = section.get("params") or {}
    kernel = _FOR_GPUS.get(name)
    if kernel is None or _offloads(ds_config) or params.get("torch_adam") or not _lacks_kernel(kernel):
        return None
    if kernel != "fused_adam" or not params.keys() <= _OF_BOTH:
        on = "there is no CUDA toolkit (nvcc) to compile it with" if count_gpus() else "CPU ranks have none"
        raise ConfigError(
            f"{section['type']} is a CUDA kernel of DeepSpeed's, and {on}",
            where=where,
            hint="Use adamw_torch_fused in training.optim, or another of PyTorch's",
        )
    section["params"] = {**params, "torch_adam": True, "fused": True}
    return f"no CUDA toolkit (nvcc) to compile DeepSpeed's {section['type']} with: torch's fused one serves"


_OF_BOTH = {"lr", "betas", "eps", "weight_decay", "adam_w_mode"}
"""Arguments with the same meaning in DeepSpeed's FusedAdam and torch's classes."""


def _lacks_kernel(name: str) -> bool:
    from deepspeed.git_version_info import installed_ops
    from torch.utils.cpp_extension import CUDA_HOME

    if not RunPolicy.current().uses_this_machine or installed_ops.get(name):
        return False
    if count_gpus() == 0:
        return name != "fused_adam"  # of which there is one for the CPU
    return CUDA_HOME is None or shutil.which("nvcc", path=str(Path(CUDA_HOME, "bin"))) is None


def _offloads(ds_config: Mapping[str, Any]) -> bool:
    return offload_device(ds_config.get(ZERO) or {}, "offload_optimizer") not in (None, "none")

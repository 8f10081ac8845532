"""The recipe's ``training`` and ``deepspeed`` sections as transformers' TrainingArguments.

Creating TrainingArguments registers the ds_config with transformers. Only a model that is created afterwards
is partitioned while it is built (``zero.Init``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit import console
from zerokit.checkpoint.source import read_model_config
from zerokit.choices import OUTPUT_DIR
from zerokit.config import load_ds_config
from zerokit.config.load import as_error
from zerokit.config.sections import OffloadParam
from zerokit.distributed.group import count_gpus
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.distributed.ranks import read_ranks
from zerokit.documents import Document, KeyPath, value_at
from zerokit.errors import ConfigError, ModelError, RecipeError
from zerokit.lint.refusals import errors_of_training
from zerokit.models import load_model_shape
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.training_keys import OwnKeys, check_without_imports
from zerokit.resolving.arguments import TRAINER_DEFAULTS
from zerokit.resolving.contradictions import Resolved, resolve_for_trainer
from zerokit.resolving.nvme_buffers import PLACE, uses_nvme_for_parameters
from zerokit.training.optimizers import check_offloaded_optimizer, replace_fused_optimizer
from zerokit.training.sequence_parallel import parallelism_config
from zerokit.training.tensor_parallel import check_tensor_parallel
from zerokit.training.trackers import trackers
from zerokit.units import format_bytes, quantity
from zerokit.writing.named_optimizer import recipe_ds_config, write_optimizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, TrainingArguments

# Where the Trainer's own default is not what a person who fine-tunes expects.
_DEFAULTS: dict[str, Any] = {
    "output_dir": OUTPUT_DIR,
    "logging_steps": 10,
    "include_num_input_tokens_seen": "non_padding",
    "logging_nan_inf_filter": False,  # it would log a loss that is no number as 0
}


def resolve_arguments(loaded: LoadedRecipe, *, place: GroupPlace, default_precision: str) -> Resolved:
    """Check the recipe's training keys and ds_config, and settle them with each other.

    Args:
        default_precision: ``bf16``, ``fp16`` or ``fp32``, used if neither side names one.

    Raises:
        RecipeError: an unknown training key, or a value of the wrong type.
        ConfigError: the ds_config is not valid, or contradicts the training keys.
    """
    document, settled = write_optimizer(recipe_ds_config(loaded), loaded)
    checked = check_without_imports(settled.recipe.training, settled.origins)
    training = {key: value for key, value in checked.items() if value is not None or key not in _DEFAULTS}
    _check_ds_config(document, loaded, place, named=settled is not loaded)
    ds_config, ds_where = load_ds_config(document).dump(), document.name
    at = loaded.where("training", "optim") if "optim" in loaded.recipe.training else ds_where
    optim = str(training.get("optim", TRAINER_DEFAULTS["optim"]))
    check_offloaded_optimizer(ds_config, optim, ds_where=ds_where, where=at)
    if (instead := replace_fused_optimizer(ds_config, where=at)) is not None and read_ranks().is_main:
        console.note(instead)
    _spread_precision(loaded, training, ds_config, ds_where)
    check_tensor_parallel(ds_config, loaded, partial(ds_config_place, loaded))
    return resolve_for_trainer(
        ds_config,
        {**_DEFAULTS, **training},
        default_precision=default_precision,
        world_size=place.world_size,
        parallelism=place.parallelism,
        ds_where=ds_where,
        where=lambda name: loaded.where(*recipe_path(name, loaded)),
    )


def _check_ds_config(document: Document, loaded: LoadedRecipe, place: GroupPlace, *, named: bool) -> None:
    """Check the ds_config like ``zerokit check --target trainer``, except for keys that the recipe adds
    (ConfigError).

    Args:
        named: whether `training.optim` names the optimizer.
    """
    if errors := errors_of_training(document, place.world_size, place.parallelism):
        options = ["--target", "trainer", "--num-gpus", str(place.world_size)]
        recipe = loaded.origins.document.name
        if Path(recipe).is_file():
            options += ["--recipe", recipe]
        path = errors[0].path
        of_optim = named and path[:1] == ("optimizer",)
        where = loaded.where("training", "optim") if of_optim else ds_config_place(loaded, path, document)
        raise as_error(errors, document, where=where, options=options)


def ds_config_place(loaded: LoadedRecipe, path: KeyPath, document: Document | None = None) -> str:
    """The place of a key of the recipe's ds_config, for an error; `document`: the ds_config, if it has been read."""
    inline = not isinstance(loaded.recipe.deepspeed, str)
    return loaded.where("deepspeed", *path) if inline else (document or recipe_ds_config(loaded)).where(path)


def recipe_path(name: str, loaded: LoadedRecipe) -> KeyPath:
    """Path of a training argument in the recipe."""
    is_spread = name in ("bf16", "fp16") and name not in loaded.recipe.training
    return ("precision",) if is_spread else ("training", name)


def _spread_precision(
    loaded: LoadedRecipe, training: dict[str, Any], ds_config: dict[str, Any], ds_where: str
) -> None:
    """Set training arguments and the section `bf16` from the recipe's one key for precision.

    Raises:
        RecipeError: `training` has another precision, or another precision of matmuls.
        ConfigError: ``bf16-true`` without ZeRO, or contradicted by the ds_config.
    """
    recipe = loaded.recipe
    if recipe.matmul_precision is not None and training.get("tf32") is not None:
        raise RecipeError(
            "says what 'matmul_precision' says, too",
            where=loaded.where("training", "tf32"),
            hint="Remove it: matmul_precision 'high' is TF32",
        )
    if recipe.precision is None:
        return
    kind = recipe.precision.removesuffix("-true")
    for name in ("bf16", "fp16"):
        if training.setdefault(name, name == kind) is not (name == kind):
            raise RecipeError(
                f"{name} is {str(training[name]).lower()}, but 'precision' is {recipe.precision}",
                where=loaded.where("training", name),
                hint="Remove it: precision says it for all",
            )
    if recipe.precision != "bf16-true":
        return
    if ds_config.get("zero_optimization", {}).get("stage", 0) == 0:
        raise ConfigError(
            f"precision bf16-true needs ZeRO stage 1, 2 or 3, and {ds_where} has 0",
            where=loaded.where("precision"),
            hint="Raise the stage, or take bf16",
        )
    whole = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    section = ds_config.setdefault("bf16", {})
    for key, value in whole.items():
        if section.setdefault(key, value) is not value:
            raise ConfigError(
                f"precision is bf16-true, but bf16.{key} in {ds_where} is false",
                where=loaded.where("precision"),
                hint="Remove one of the two",
            )


_NEED_HELD_OUT_DATA = (
    *("eval_strategy", "eval_on_start", "do_eval", "load_best_model_at_end", "metric_for_best_model"),
    "greater_is_better",
)


def build_arguments(
    resolved: Resolved, loaded: LoadedRecipe, place: GroupPlace, *, use_cpu: bool, evaluate: bool
) -> TrainingArguments:
    """Make the TrainingArguments, which registers the ds_config with transformers. Raises RecipeError for
    wrong values.

    Args:
        evaluate: whether there is held-out data; its loss is then measured before training, too.
    """
    from accelerate.utils import TorchDynamoPlugin
    from transformers import TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    keys = dict(resolved.training)
    if use_cpu:
        keys.setdefault("use_cpu", True)
        keys.setdefault("dataloader_pin_memory", False)
    if evaluate:
        keys.setdefault("eval_on_start", True)
        keys.setdefault("prediction_loss_only", True)
    # DPO computes the log probabilities of the untrained model in batches of evaluation.
    batches = ("per_device_eval_batch_size",) if loaded.recipe.task.type != "dpo" else ()
    for name in () if evaluate else (*_NEED_HELD_OUT_DATA, *batches):
        if name in batches and any(
            loaded.origins.is_later(("data", key), ("training", name)) for key in ("eval", "eval_fraction")
        ):
            continue  # an option has switched off what a key of the recipe is for
        if keys.get(name) not in (None, False, "no"):
            raise RecipeError(
                "there is no held-out data to evaluate on",
                where=loaded.where("training", name),
                hint="Set data.eval or data.eval_fraction, or remove it",
            )
    # Evaluation in larger batches than training, such as the Trainer's 8, is what would run out of memory.
    if (batch := keys.get("per_device_train_batch_size")) is not None:
        keys.setdefault("per_device_eval_batch_size", batch)
    _use_new_names(keys)
    if place.parallelism.sequence > 1:
        keys["parallelism_config"] = parallelism_config(place)
    keys["report_to"] = list(trackers(loaded))
    # zerokit prints its own progress.
    keys.setdefault("disable_tqdm", True)
    try:
        args = TrainingArguments(**keys, deepspeed=resolved.ds_config)
        TorchDynamoPlugin(backend=args.torch_compile_backend)  # as the Trainer will
        get_reporting_integration_callbacks(args.report_to)  # refuses names that the Trainer will refuse
        return args
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        path = _key_of_error(str(error), loaded.recipe.training)
        raise RecipeError(
            f"TrainingArguments: {error}", where=loaded.where("training", *path), hint="Change that key"
        ) from error


def _key_of_error(said: str, training: Mapping[str, Any]) -> list[str]:
    """The training key that an error names, or whose value it names; empty if there is none."""
    named = [name for name in training if re.search(rf"\b{name}\b", said)]
    valued = [
        name
        for name, value in training.items()
        if said.lower().replace("'", "").startswith(f"{value} is not a valid".lower())
    ]
    return [*valued, *named][:1]


def _use_new_names(keys: dict[str, Any]) -> None:
    """Rename checkpointing keys to those of the installed transformers, which warns about old names."""
    from transformers.training_args import TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    for end in ("", "_kwargs"):
        old, new = f"gradient_checkpointing{end}", f"activation_checkpointing{end}"
        if old in keys and new in known:
            keys.setdefault(new, keys.pop(old))


def check_full_batch(args: TrainingArguments, count: int, num_ranks: int, loaded: LoadedRecipe) -> None:
    """Refuse to drop the only batch: the run would succeed without a step (RecipeError)."""
    batch = args.per_device_train_batch_size * num_ranks
    if args.dataloader_drop_last and count < batch:
        raise RecipeError(
            f"drops all {quantity(count, 'sequence')} that there are: one batch of all ranks takes {batch:,}",
            where=loaded.where("training", "dataloader_drop_last"),
            hint="Set it to false, or lower per_device_train_batch_size",
        )


def _precisions() -> list[str]:
    """Precisions of this machine, as DeepSpeed checks them after it has loaded the model."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    can = {"bf16": accelerator.is_bf16_supported(), "fp16": accelerator.is_fp16_supported(), "fp32": True}
    return [name for name, is_supported in can.items() if is_supported]


def check_precision(resolved: Resolved, loaded: LoadedRecipe) -> None:
    """Refuse a precision that this machine does not have (RecipeError)."""
    supported = _precisions()
    for name in ("bf16", "fp16"):
        if resolved.training[name] and name not in supported:
            device = "the CPU" if count_gpus() == 0 else "the GPU"
            raise RecipeError(
                f"{name} does not run on {device} of this machine",
                where=loaded.where(*recipe_path(name, loaded)),
                hint=f"Set precision to {' or '.join(supported)}",
            )


def check_fp16(resolved: Resolved, loaded: LoadedRecipe, folder: Path | None) -> None:
    """Refuse fp16, with its limit of 65,504, for a bf16 checkpoint without `model.dtype` (RecipeError)."""
    if folder is None or not resolved.training["fp16"] or loaded.recipe.model.dtype is not None:
        return
    config = read_model_config(folder / "config.json", where=loaded.where("model", "path")).data
    if "bfloat16" in (config.get("dtype"), config.get("torch_dtype")):
        others = [name for name in _precisions() if name != "fp16"]
        raise RecipeError(
            f"the run would be in fp16, but '{folder}' was trained in bf16, of which fp16 lacks the range",
            where=loaded.where(*recipe_path("fp16", loaded)),
            hint=f"Set precision to {' or '.join(others)}, or model.dtype to float16 if fp16 is meant",
        )


def read_own_keys(resolved: Resolved) -> OwnKeys:
    """Remove zerokit's own keys from the resolved arguments."""
    given = {key.name: resolved.training.pop(key.name, None) for key in fields(OwnKeys)}
    return OwnKeys(**{name: value for name, value in given.items() if value not in (None, "")})


def size_nvme_buffers(
    resolved: Resolved, loaded: LoadedRecipe, config: PretrainedConfig, world_size: int
) -> tuple[Resolved, str | None]:
    """Fill in number and size of NVMe buffers by the model; DeepSpeed's defaults do not depend on it.

    Returns:
        the run, and a line about the filled-in values, or None if nothing was.

    Raises:
        ConfigError: the ds_config has too few or too small buffers for the model.
    """
    section = value_at(resolved.ds_config, PLACE)
    if not uses_nvme_for_parameters(resolved.ds_config):
        return resolved, None
    try:
        model = load_model_shape(config.to_dict(), allow_network=False)
    except ModelError:  # DeepSpeed will say
        return resolved, None
    buffers = resolved.nvme_buffers(model, world_size)
    held = section.get("max_in_cpu", OffloadParam.model_fields["max_in_cpu"].default)
    recomputes = resolved.training.get("gradient_checkpointing") is True
    fewest = buffers.least_count(held) if recomputes else 0
    for key, least, why in (
        ("buffer_count", fewest, f"a layer has {fewest} large parameters, all in use at once"),
        ("buffer_size", buffers.least_size, f"a rank's share of {buffers.largest.name} has {buffers.size:,} elements"),
    ):
        if section.get(key, least) < least:
            raise ConfigError(
                f"{section[key]:,} does not do: {why}",
                where=ds_config_place(loaded, (*PLACE, key)),
                hint="Remove it: zerokit train goes by the model",
            )
    resolved = resolved.with_nvme_buffers(model, world_size)
    sized = value_at(resolved.ds_config, PLACE)
    written = [key for key in sized if key not in section]
    if not written:
        return resolved, None
    pinned = sized["buffer_count"] * sized["buffer_size"] * buffers.element_bytes
    return resolved, (
        f"parameters go to NVMe through {sized['buffer_count']} buffers of {sized['buffer_size']:,} elements "
        f"({format_bytes(pinned)} of each rank's host memory), by the model; "
        f"{' and '.join(written)} in zero_optimization.offload_param set others"
    )

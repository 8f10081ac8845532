"""The recipe's ``training`` and ``deepspeed`` sections as transformers' TrainingArguments.

Creating TrainingArguments registers the ds_config with transformers; only a model that is made after
that is partitioned as it is built (``zero.Init``). So these come first, the model second.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit import console
from zerokit.choices import OUTPUT_DIR
from zerokit.config import load_ds_config, read_ds_config
from zerokit.config.load import as_error
from zerokit.distributed.ranks import read_ranks
from zerokit.documents import Document, KeyPath
from zerokit.errors import ConfigError, RecipeError
from zerokit.hardware.cluster import Cluster
from zerokit.lint import check_document
from zerokit.recipe import training_keys
from zerokit.resolving.arguments import TRAINER_DEFAULTS
from zerokit.resolving.run import Run
from zerokit.resolving.settle import Resolved, resolve_for_trainer
from zerokit.training.optimizers import check_replaced, without_toolkit
from zerokit.training.trackers import BUILT_IN, trackers
from zerokit.units import quantity
from zerokit.writing.build import build_ds_config
from zerokit.writing.named_optimizer import write_optimizer

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from zerokit.recipe import LoadedRecipe

# Where the Trainer's own default is not what a person who fine-tunes expects.
_DEFAULTS: dict[str, Any] = {
    "output_dir": OUTPUT_DIR,
    "logging_steps": 10,
    "include_num_input_tokens_seen": "non_padding",
    "logging_nan_inf_filter": False,  # it would log a loss that is no number as 0
}

# Findings about keys that are absent from the ds_config and that the recipe fills, and about its text, which
# the Trainer does not get to read.
_ADDED_BY_RECIPE = ("no-batch-size", "lost-argument", "accelerate-without-zero", "not-plain-json")

_NOT_DATA_PARALLEL = ("tensor_parallel", "pipeline", "expert_parallel", "sequence_parallel_size")

DEFAULT_ZERO_STAGE = 2


def resolve_arguments(loaded: LoadedRecipe, *, world_size: int, default_precision: str) -> Resolved:
    """Check the recipe's training keys and ds_config, and settle them with each other.

    Args:
        loaded: the recipe.
        world_size: number of ranks.
        default_precision: ``bf16``, ``fp16`` or ``fp32``, used when neither side names one.

    Raises:
        RecipeError: an unknown training key, or a value of the wrong type.
        ConfigError: the ds_config is not valid, or contradicts the training keys.
    """
    document, settled = write_optimizer(_ds_document(loaded), loaded)
    training = check_training_keys(settled)
    _check_ds_config(document, loaded, world_size, named=settled is not loaded)
    ds_config, ds_where = load_ds_config(document).dump(), document.name
    at = loaded.where("training", "optim") if "optim" in loaded.recipe.training else ds_where
    optim = str(training.get("optim", TRAINER_DEFAULTS["optim"]))
    check_replaced(ds_config, optim, ds_where=ds_where, where=at)
    if (instead := without_toolkit(ds_config, where=at)) is not None and read_ranks().is_main:
        console.note(instead)
    _spread_precision(loaded, training, ds_config, ds_where)
    return resolve_for_trainer(
        ds_config,
        {**_DEFAULTS, **training},
        default_precision=default_precision,
        world_size=world_size,
        ds_where=ds_where,
        where=lambda name: loaded.where(*written_at(name, loaded)),
    )


def _ds_document(loaded: LoadedRecipe) -> Document:
    """The recipe's ds_config with the lines of its file, or of the recipe if it is inline."""
    source = loaded.recipe.deepspeed
    if source is None:
        default = build_ds_config(zero_stage=DEFAULT_ZERO_STAGE, precision=None).dump()
        return Document(default, "zerokit's default ds_config")
    if isinstance(source, str):
        document = read_ds_config(source)
        if not isinstance(document.data, dict):
            raise ConfigError("is not a JSON object", where=document.name, hint="Write { ... }")
        return document
    written = loaded.origins.document.positions.items()
    positions = {path[1:]: place for path, place in written if path[:1] == ("deepspeed",)}
    return Document(source, loaded.where("deepspeed"), positions)


def _check_ds_config(document: Document, loaded: LoadedRecipe, world_size: int, *, named: bool) -> None:
    """Hold the ds_config to what ``zerokit check --target trainer`` says, but for what the recipe adds.

    Args:
        document: the ds_config.
        loaded: the recipe, for the place of an error.
        world_size: number of ranks.
        named: whether the optimizer is there because `training.optim` names it.

    Raises:
        ConfigError: the first error.
    """

    def where(path: KeyPath) -> str:
        if named and path[:1] == ("optimizer",):
            return loaded.where("training", "optim")
        return _place(path, document, loaded)

    report = check_document(document, Run(target="trainer", cluster=Cluster(world_size)))
    problems = [problem for problem in report.findings if problem.rule not in _ADDED_BY_RECIPE]
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        options = ["--target", "trainer", "--num-gpus", str(world_size)]
        recipe = loaded.origins.document.name
        if Path(recipe).is_file():
            options += ["--recipe", recipe]
        raise as_error(errors, document, where=where(errors[0].path), options=options)
    for key in _NOT_DATA_PARALLEL:
        if document.data.get(key) not in (None, 1):
            raise ConfigError(
                "divides the model in a way that zerokit train does not run",
                where=where((key,)),
                hint="Remove it",
            )


def _place(path: KeyPath, document: Document, loaded: LoadedRecipe) -> str:
    inline = not isinstance(loaded.recipe.deepspeed, str)
    return loaded.where("deepspeed", *path) if inline else document.where(path)


def ds_config_place(path: KeyPath, loaded: LoadedRecipe) -> str:
    """The place of a key of the recipe's ds_config, for an error."""
    return _place(path, _ds_document(loaded), loaded)


def written_at(name: str, loaded: LoadedRecipe) -> KeyPath:
    """Where the recipe says a training argument, or would."""
    is_spread = name in ("bf16", "fp16") and name not in loaded.recipe.training
    return ("precision",) if is_spread else ("training", name)


def _spread_precision(
    loaded: LoadedRecipe, training: dict[str, Any], ds_config: dict[str, Any], ds_where: str
) -> None:
    """Have the recipe's one key for precision mean the two training arguments and the section `bf16`.

    Raises:
        RecipeError: the recipe says another precision in `training`, or another of matrix products.
        ConfigError: all of it in bf16, which ZeRO stage 0 does not have.
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


def check_training_keys(loaded: LoadedRecipe) -> dict[str, Any]:
    """The recipe's ``training`` section; see :func:`zerokit.recipe.training_keys.check_training_keys`.

    Raises:
        RecipeError: a key or a value is not valid.
    """
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    fields = [field.name for field in dataclasses.fields(TrainingArguments) if field.init]
    checked = training_keys.check_training_keys(
        loaded.recipe.training, loaded.origins, {name: hints[name] for name in fields}
    )
    return {name: value for name, value in checked.items() if value is not None or name not in _DEFAULTS}


_NEED_HELD_OUT_DATA = (
    *("eval_strategy", "eval_on_start", "do_eval", "load_best_model_at_end", "metric_for_best_model"),
    "greater_is_better",
)


def build_arguments(
    resolved: Resolved, loaded: LoadedRecipe, *, use_cpu: bool, evaluate: bool
) -> TrainingArguments:
    """Make the TrainingArguments, which registers the ds_config with transformers.

    Args:
        resolved: the settled keys.
        loaded: the recipe, for the place of an error.
        use_cpu: train on CPU.
        evaluate: whether there is held-out data; the loss on it is then measured before training too.

    Raises:
        RecipeError: a value that TrainingArguments does not take.
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
    for name in () if evaluate else _NEED_HELD_OUT_DATA:
        if keys.get(name) not in (None, False, "no"):
            raise RecipeError(
                "there is no held-out data to evaluate on",
                where=loaded.where("training", name),
                hint="Set data.eval or data.eval_fraction",
            )
    # Evaluation in larger batches than training, such as the Trainer's 8, is what would run out of memory.
    if (batch := keys.get("per_device_train_batch_size")) is not None:
        keys.setdefault("per_device_eval_batch_size", batch)
    _use_new_names(keys)
    keys["report_to"] = [name for name in trackers(loaded) if name not in BUILT_IN]
    # zerokit prints its own progress.
    keys.setdefault("disable_tqdm", True)
    try:
        args = TrainingArguments(**keys, deepspeed=resolved.ds_config)
        TorchDynamoPlugin(backend=args.torch_compile_backend)  # as the Trainer will
        get_reporting_integration_callbacks(args.report_to)  # refuses names that the Trainer will refuse
        return args
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        path = _named_by(str(error), loaded.recipe.training)
        raise RecipeError(
            f"TrainingArguments: {error}", where=loaded.where("training", *path), hint="Change that key"
        ) from error


def _named_by(said: str, training: Mapping[str, Any]) -> list[str]:
    """The key that an error speaks of, by its name or a value that is no choice; empty where by neither."""
    named = [name for name in training if re.search(rf"\b{name}\b", said)]
    valued = [
        name
        for name, value in training.items()
        if said.lower().replace("'", "").startswith(f"{value} is not a valid".lower())
    ]
    return [*valued, *named][:1]


def _use_new_names(keys: dict[str, Any]) -> None:
    """Call checkpointing as the installed transformers does: later ones warn of the old name."""
    from transformers.training_args import TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    for end in ("", "_kwargs"):
        old, new = f"gradient_checkpointing{end}", f"activation_checkpointing{end}"
        if old in keys and new in known:
            keys.setdefault(new, keys.pop(old))


def check_full_batch(args: TrainingArguments, count: int, num_ranks: int, loaded: LoadedRecipe) -> None:
    """Refuse to drop the only batch there is: the run would end well without a step.

    Args:
        args: as built.
        count: sequences to train on.
        num_ranks: that take a batch each.
        loaded: the recipe, for the place of an error.

    Raises:
        RecipeError: no batch would be left.
    """
    one = args.per_device_train_batch_size * num_ranks
    if args.dataloader_drop_last and count < one:
        raise RecipeError(
            f"drops all {quantity(count, 'sequence')} that there are: one batch of all ranks takes {one:,}",
            where=loaded.where("training", "dataloader_drop_last"),
            hint="Set it to false, or lower per_device_train_batch_size",
        )

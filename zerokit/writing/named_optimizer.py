"""A recipe's ds_config, and the words of its ``training.optim`` that have DeepSpeed make the optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from zerokit.choices import OptimizerName
from zerokit.config.base import AUTO, ZERO
from zerokit.config.load import read_ds_config
from zerokit.documents import Document
from zerokit.errors import ConfigError, RecipeError
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.zero import offload_device
from zerokit.resolving.arguments import TRAINER_DEFAULTS
from zerokit.writing.build import build_ds_config

OF_DEEPSPEED: dict[str, OptimizerName] = {f"deepspeed_{name.lower()}": name for name in get_args(OptimizerName)}
"""Beside the words of transformers' ``OptimizerNames``."""


def recipe_ds_config(loaded: LoadedRecipe) -> Document:
    """The recipe's ds_config with the lines of its file, or of the recipe if it is inline.

    Raises:
        ConfigError: the file cannot be read.
        RecipeError: the recipe has none, and the default does not go with its parallelism.
    """
    source = loaded.recipe.deepspeed
    if source is None:
        if loaded.recipe.parallel.sequence > 1:
            raise RecipeError(
                "sequence parallelism needs ZeRO-3, and a recipe without a section 'deepspeed' has ZeRO-2",
                where=loaded.where("parallel", "sequence"),
                hint="Write deepspeed: {zero_optimization: {stage: 3}}",
            )
        return Document(build_ds_config(zero_stage=2, precision=None).dump(), "zerokit's default ds_config")
    if isinstance(source, str):
        return read_ds_config(source)
    written = loaded.origins.document.positions.items()
    positions = {path[1:]: place for path, place in written if path[:1] == ("deepspeed",)}
    return Document(source, loaded.where("deepspeed"), positions)


def write_optimizer(document: Document, loaded: LoadedRecipe) -> tuple[Document, LoadedRecipe]:
    """Write the optimizer that a recipe names so into its ds_config, its numbers left to the Trainer's.

    Args:
        document: the ds_config as written; one that has an optimizer stays as it is.

    Returns:
        the ds_config, and the recipe without the word; both unchanged where it is none of these.

    Raises:
        ConfigError: one that the ZeRO stage, offload or clipping does not go with.
    """
    name = OF_DEEPSPEED.get(str(loaded.recipe.training.get("optim")))
    data = document.data
    if name is None or not isinstance(data, dict) or "optimizer" in data:
        return document, loaded
    zero = data.get(ZERO, {})
    if not isinstance(zero, dict):  # the check of the ds_config reports it
        return document, loaded
    where = loaded.where("training", "optim")
    stage = zero.get("stage", 0)
    stage = stage if stage in (1, 2, 3) else 0
    if name == "Muon" and stage in (1, 2) and offload_device(zero, "offload_optimizer") in ("cpu", "nvme"):
        raise ConfigError(
            f"Muon's step would follow the plain gradient where ZeRO stage {stage} offloads the optimizer",
            where=where,
            hint="Use stage 3, do not offload it, or use adamw_torch",
        )
    clipping = data.get("gradient_clipping", AUTO)
    if clipping == AUTO:
        clipping = loaded.recipe.training.get("max_grad_norm", TRAINER_DEFAULTS["max_grad_norm"])
    if name == "Muon" and stage > 0 and clipping != 0:  # the rule muon-clipping
        raise ConfigError(
            f"clipping at {clipping} would cut Muon's updates: under ZeRO it is their norm that is clipped",
            where=where,
            hint="Set training.max_grad_norm to 0",
        )
    try:
        made = build_ds_config(zero_stage=stage, precision=None, optimizer=name).dump()
    except ConfigError as error:
        raise ConfigError(error.message, where=where, hint=error.hint) from None
    own = {key: made[key] for key in ("optimizer", "zero_allow_untested_optimizer") if key in made}
    data = {**own, **data}
    if "reduce_scatter" in made[ZERO]:
        data[ZERO] = {"reduce_scatter": made[ZERO]["reduce_scatter"], **zero}
    training: dict[str, Any] = {key: value for key, value in loaded.recipe.training.items() if key != "optim"}
    recipe = loaded.recipe.model_copy(update={"training": training})
    return replace(document, data=data), replace(loaded, recipe=recipe)

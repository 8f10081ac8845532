"""Tensor parallelism: DeepSpeed's AutoTP, which divides the layers of a model among the ranks of a group.

The group computes one batch together, so its ranks read the same examples. DeepSpeed divides gradients by the
number of groups (``groups._init_tp_mesh_device``), and sums norms over the ranks of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zerokit.config.base import ZERO
from zerokit.documents import KeyPath
from zerokit.errors import ConfigError, RecipeError
from zerokit.training.sequence_parallel import check_parallelism, divided_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from zerokit.recipe import LoadedRecipe

SECTION = "tensor_parallel"


def check_tensor_parallel(ds_config: Mapping[str, Any], loaded: LoadedRecipe, place: Callable[[KeyPath], str]) -> None:
    """Refuse what does not go with the recipe's tensor parallelism.

    Raises:
        ConfigError: the ds_config has a key that does not go with it.
        RecipeError: the run has something that does not go with it.
    """
    recipe = loaded.recipe
    if recipe.parallel.tensor == 1:
        return
    mixed = "has groups of consecutive ranks, which hold different parts of a layer"
    for path, is_off, why in (
        (
            (SECTION, "vocab_parallel_lm_head"),
            (None, False),
            "leaves each rank a part of the logits; the loss needs all",
        ),
        ((ZERO, "zero_hpz_partition_size"), (None, 1), mixed),
        ((ZERO, "zero_quantized_gradients"), (None, False), mixed),
    ):
        if (ds_config.get(path[0]) or {}).get(path[1]) not in is_off:
            raise ConfigError(why, where=place(path), hint="Remove it")
    check_parallelism(loaded, "tensor", has_adapter=recipe.peft is not None)
    if recipe.training.get("use_liger_kernel"):
        why, hint = (
            "use_liger_kernel, whose loss has a part of the output matrix on each rank",
            "Remove one of the two",
        )
    elif recipe.task.type != "causal_lm":
        why, hint = f"task {recipe.task.type}", "Remove it, or train a causal_lm"
    else:
        return
    where = loaded.where("parallel", "tensor")
    raise RecipeError(f"tensor parallelism does not go with {why}", where=where, hint=hint)


def check_model(config: PretrainedConfig, loaded: LoadedRecipe) -> None:
    """Refuse a model that AutoTP does not divide, or not evenly (RecipeError)."""
    if loaded.recipe.parallel.tensor > 1:  # otherwise the model may have no heads
        check_parallelism(loaded, "tensor", model=divided_model(config.get_text_config(decoder=True)))


@contextmanager
def loading_whole() -> Iterator[None]:
    """A context to load a model in: hides AutoTP's section from transformers.

    Under ZeRO-3, transformers refuses to load weights for AutoTP (``_apply_weight_conversions_to_state_dict``),
    although DeepSpeed divides layers only when it makes the engine.
    """
    from transformers.integrations.deepspeed import deepspeed_config

    config: dict[str, Any] = deepspeed_config() or {}
    section = config.pop(SECTION, None)
    try:
        yield
    finally:
        if section is not None:
            config[SECTION] = section

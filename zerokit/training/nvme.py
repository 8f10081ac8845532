"""The buffers of a run whose parameters go to NVMe, sized to its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerokit.config.offload import OffloadParam
from zerokit.documents import value_at
from zerokit.errors import ConfigError, ModelError
from zerokit.models import load_model_shape
from zerokit.resolving.nvme_buffers import PLACE, uses_nvme_for_parameters
from zerokit.training.arguments import ds_config_place
from zerokit.units import format_bytes

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved


def size_buffers(
    resolved: Resolved, loaded: LoadedRecipe, config: PretrainedConfig, world_size: int
) -> tuple[Resolved, str | None]:
    """Say how many buffers and how large, where the ds_config does not; DeepSpeed's defaults go by no model.

    Args:
        resolved: the run.
        loaded: its recipe, for the place of an error.
        config: the model's.
        world_size: ranks.

    Returns:
        the run, and a line about what was filled in; None where nothing was.

    Raises:
        ConfigError: the ds_config has buffers too few or too small for the model.
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
        (
            "buffer_size",
            buffers.least_size,
            f"a rank's share of {buffers.largest.name} has {buffers.size:,} elements",
        ),
    ):
        if section.get(key, least) < least:
            raise ConfigError(
                f"{section[key]:,} does not do: {why}",
                where=ds_config_place((*PLACE, key), loaded),
                hint="Remove it: zerokit train goes by the model",
            )
    resolved = resolved.with_nvme_buffers(model, world_size)
    sized = value_at(resolved.ds_config, PLACE)
    told = [key for key in sized if key not in section]
    if not told:
        return resolved, None
    pinned = sized["buffer_count"] * sized["buffer_size"] * buffers.element_bytes
    return resolved, (
        f"parameters go to NVMe through {sized['buffer_count']} buffers of {sized['buffer_size']:,} elements "
        f"({format_bytes(pinned)} of each rank's host memory), by the model; "
        f"{' and '.join(told)} in zero_optimization.offload_param set others"
    )

"""The buffers of a run whose parameters go to NVMe, sized to its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.config.offload import OffloadParam
from zerokit.errors import ConfigError, ModelError
from zerokit.models import load_model_shape
from zerokit.resolving.nvme_buffers import NvmeBuffers
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
    zero = resolved.ds_config["zero_optimization"]
    section = zero.get("offload_param")
    if zero.get("stage") != 3 or not isinstance(section, Mapping) or section.get("device") != "nvme":
        return resolved, None
    try:
        model = load_model_shape(config.to_dict(), allow_network=False)
    except ModelError:  # DeepSpeed will say
        return resolved, None
    kept = any(resolved.training.get(name) for name in ("bf16", "fp16"))
    block = resolved.ds_config.get("aio", {}).get("block_size", 0)
    buffers = NvmeBuffers(model, world_size, element_bytes=2 if kept else 4, block_bytes=block)
    held = section.get("max_in_cpu", OffloadParam.model_fields["max_in_cpu"].default)
    recomputes = resolved.training.get("gradient_checkpointing") is True
    fewest = buffers.of_layer if recomputes and buffers.surely_swaps_a_layer(held) else 0
    smallest = buffers.size if buffers.swaps(buffers.largest) else 0
    for key, least, why in (
        ("buffer_count", fewest, f"a layer has {fewest} large parameters, all in use at once"),
        ("buffer_size", smallest, f"a rank's share of {buffers.largest.name} has {smallest:,} elements"),
    ):
        if section.get(key, least) < least:
            path = ("zero_optimization", "offload_param", key)
            raise ConfigError(
                f"{section[key]:,} does not do: {why}",
                where=ds_config_place(path, loaded),
                hint="Remove it: zerokit train goes by the model",
            )
    filled = {"buffer_count": buffers.count, "buffer_size": buffers.size}
    told = {key: value for key, value in filled.items() if key not in section}
    if not told:
        return resolved, None
    sized: dict[str, Any] = {**section, **told}
    pinned = sized["buffer_count"] * sized["buffer_size"] * buffers.element_bytes
    line = (
        f"parameters go to NVMe through {sized['buffer_count']} buffers of {sized['buffer_size']:,} elements "
        f"({format_bytes(pinned)} of each rank's host memory), by the model; "
        f"{' and '.join(told)} in zero_optimization.offload_param set others"
    )
    zero = {**zero, "offload_param": sized}
    return replace(resolved, ds_config={**resolved.ds_config, "zero_optimization": zero}), line

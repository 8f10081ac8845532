"""The ZeRO settings of a recipe as written, for commands that start no run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.config.base import ZERO
from zerokit.config.load import read_ds_config
from zerokit.recipe.model import Recipe

Zero = Mapping[str, Any]


def zero_section(recipe: Recipe) -> Zero:
    """The section zero_optimization of the recipe's ds_config; without a ds_config, zerokit's own stage.

    Raises:
        ZerokitError: the file that it names cannot be read.
    """
    named = recipe.deepspeed
    ds_config: Any = read_ds_config(named).data if isinstance(named, str) else named
    zero = ds_config.get(ZERO) if isinstance(ds_config, dict) else {"stage": 2}
    return zero if isinstance(zero, dict) else {}


def offload_device(zero: Zero, section: str) -> Any:
    """The device of ``offload_optimizer`` or ``offload_param``; None if it is absent."""
    offload = zero.get(section)
    return offload.get("device") if isinstance(offload, dict) else None

"""Modules that ranks must call alike: under ZeRO-3 each call gathers parameters from all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def set_leaf_modules(model: torch.nn.Module) -> bool:
    """Make experts leaves of ZeRO-3, gathered together, and layerdrop 0; returns whether there was any."""
    from deepspeed.utils import set_z3_leaf_module

    skips = False
    for module in model.modules():
        if calls_some(module):
            set_z3_leaf_module(module, True)
        if vars(module).get("layerdrop"):  # which each rank throws dice for
            skips, vars(module)["layerdrop"] = True, 0.0
    return skips


def calls_some(module: torch.nn.Module) -> bool:
    """Whether a module is a list with its own forward(), as of experts that it calls selectively."""
    from torch.nn import Module, ModuleDict, ModuleList

    return isinstance(module, (ModuleDict, ModuleList)) and type(module).forward is not Module.forward

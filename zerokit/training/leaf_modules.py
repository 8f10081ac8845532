"""Modules that each rank may call differently: experts in lists, and layers dropped at random.

Ranks exchange gradients, and under ZeRO-3 gather parameters, in the order of module calls. If the orders
differ, they mix up parameters or wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zerokit.errors import ConfigError

if TYPE_CHECKING:
    import torch


def set_leaf_modules(
    model: torch.nn.Module, stage: int, where: str, note: Callable[[str], None] | None
) -> None:
    """Make all ranks call the same modules: mark experts as ZeRO-3 leaves, disable layerdrop; report that to
    `note`.

    ConfigError as of :func:`check_experts`.
    """
    from deepspeed.utils import set_z3_leaf_module

    check_experts(model, stage, where)
    skips = False
    for module in model.modules():
        if _calls_some(module):
            set_z3_leaf_module(module, True)
        if vars(module).get("layerdrop"):  # which each rank throws dice for
            skips, vars(module)["layerdrop"] = True, 0.0
    if skips and note is not None:
        note("no layer is left out by chance (layerdrop): each rank would leave out others")


def check_experts(model: torch.nn.Module, stage: int, where: str) -> None:
    """Refuse trained experts that are called one by one under ZeRO stages 1 and 2 (ConfigError).

    These stages exchange gradients in the order of each rank, and would silently mix up those of different
    experts.
    """
    for module in model.modules() if stage in (1, 2) else ():
        if _calls_some(module) and any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(
                f"{type(module).__name__} calls experts one by one, by the tokens of a rank: under "
                f"ZeRO-{stage} ranks that call others would take gradients of one for those of another",
                where=where,
                hint="Train under ZeRO-3, which takes them as one, or an adapter that no expert has",
            )


def _calls_some(module: torch.nn.Module) -> bool:
    """Whether a module is a list with its own forward(), as of experts that it calls selectively."""
    from torch.nn import Module, ModuleDict, ModuleList

    return isinstance(module, (ModuleDict, ModuleList)) and type(module).forward is not Module.forward

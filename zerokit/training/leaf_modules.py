"""Modules that each rank calls by its own tokens or dice: experts in lists, layers left out by chance.

Ranks exchange gradients, and under ZeRO-3 gather parameters, in the order in which modules are called. Where
they call others, they take one for another or wait for each other.
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
    """Have all ranks call the same modules of a model in each step, as what they exchange asks for.

    Args:
        note: told of what is not as the model's config says.

    Raises:
        ConfigError: as of :func:`check_experts`.
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
    """Refuse experts that are called one by one, and trained, where ranks exchange gradients in order.

    Args:
        stage: of ZeRO. Stages 1 and 2 exchange gradients in the order in which each rank has them.

    Raises:
        ConfigError: ranks would take gradients of different experts for those of one, without a word.
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
    """Whether it is a list of modules with a forward() of its own: of experts, of which it calls some."""
    from torch.nn import Module, ModuleDict, ModuleList

    return isinstance(module, (ModuleDict, ModuleList)) and type(module).forward is not Module.forward

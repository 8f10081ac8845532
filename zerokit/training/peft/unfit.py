"""Linear layers beside which an adapter would break the model, or never be called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OF_MODELS = ("transformers", "transformers_modules")
"""Packages with code of models; layers of other packages, such as quantized ones, are peft's business."""


def unfit_layers(model: PreTrainedModel) -> list[str]:
    """The last part of their names, sorted: routers that return a pair, and what kernels read themselves.

    Mamba's kernels are given the weight of `out_proj`, whose own forward is not called then
    (``mamba_split_conv1d_scan_combined`` and ``mamba_inner_fn`` of mamba-ssm): peft refuses it for some types
    of models, and with the others an adapter on it would stay as it was made.
    """
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not _is_plain(module):
            found.add(name.rpartition(".")[2])
        elif "A_log" in module._parameters and isinstance(getattr(module, "conv1d", None), nn.Conv1d):
            found.update({"out_proj"} & module._modules.keys())
    return sorted(found)


def pattern_of(names: list[str]) -> str:
    """What matches modules of these names and whatever is below them, as peft matches: whole."""
    return rf"(.*\.)?({'|'.join(map(re.escape, names))})(\..*)?"


def _is_plain(module: nn.Linear) -> bool:
    """Whether it gives one tensor of one, as peft takes for granted."""
    kind = type(module)
    if kind.forward is nn.Linear.forward or kind.__module__.split(".")[0] not in _OF_MODELS:
        return True
    # Without values: under ZeRO-3 a rank has none of most parameters.
    empty = {
        name: torch.empty(getattr(parameter, "ds_shape", parameter.shape), device="meta")
        for name, parameter in module.named_parameters(recurse=False)
    }
    try:
        given = torch.func.functional_call(
            module, empty, (torch.empty(1, 1, module.in_features, device="meta"),)
        )
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False
    return isinstance(given, torch.Tensor)

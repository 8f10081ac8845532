"""Linear layers beside which an adapter would break the model, or never be called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OF_MODELS = ("transformers", "transformers_modules")
"""Packages with code of models; layers of other packages, such as quantized ones, are peft's business."""
_READS_WEIGHT = re.compile(r"self\.(\w+)\.weight\b(?!\.(?:dtype|device|shape|size|is_\w+)|\s*=[^=])")


def unfit_layers(model: PreTrainedModel) -> list[str]:
    """The last two parts of their names, sorted: ``mixer.out_proj``.

    - Layers of a model's own that give more than a tensor, such as routers of Llama 4.
    - Those whose weight the code around them takes by itself, as Mamba's does for its kernels: the layer, and
      so an adapter on it, is not called then. peft refuses some of them, for some types of models.
    """
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if not _is_plain(module):
                found.add(name)
        elif _is_of_models(module):
            kind: Any = type(module)
            found.update(f"{name}.{child}" for child in _read_by(kind) if _is_linear(module, child))
    return sorted({".".join(name.split(".")[-2:]) for name in found})


def pattern_of(names: list[str]) -> str:
    """What matches modules whose names end so, and whatever is below them, as peft matches: whole."""
    return rf"(.*\.)?({'|'.join(map(re.escape, names))})(\..*)?"


def _is_of_models(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] in _OF_MODELS


def _is_linear(module: nn.Module, child: str) -> bool:
    return isinstance(getattr(module, child, None), nn.Linear)


@cache
def _read_by(kind: Any) -> frozenset[str]:
    """The attributes whose weight code of a class reads as it computes."""
    return frozenset(
        match[1]
        for name, source in _methods(kind)
        if not name.startswith("__") and "init" not in name and "tie" not in name
        for match in _READS_WEIGHT.finditer(source)
    )


def _methods(kind: Any) -> Iterator[tuple[str, str]]:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if method.__module__.split(".")[0] in _OF_MODELS:
            try:
                yield name, inspect.getsource(method)
            except (OSError, TypeError):  # made without a file
                continue


def _is_plain(module: nn.Linear) -> bool:
    """Whether it gives one tensor of one, as peft takes for granted."""
    if type(module).forward is nn.Linear.forward or not _is_of_models(module):
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

"""The truth about a config: transformers' own model, built on torch's meta device."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zerokit.models import ModelShape

transformers.logging.set_verbosity_error()

Parameters = Counter[tuple[str, tuple[int, ...]]]
"""How many parameters have a name (indices of layers folded into ``*``) and a shape."""


def build(config: Mapping[str, Any], architecture: str) -> Any:
    """The model, without data. Its padding token is 0, which even the smallest vocabulary has."""
    settings = CONFIG_MAPPING[config["model_type"]].from_dict({**config, "pad_token_id": 0})
    with torch.device("meta"):
        return getattr(transformers, architecture)._from_config(settings)


def parameters_of_model(model: Any) -> Parameters:
    """A tied parameter goes by the first of its names in the alphabet."""
    names = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].add(name)
    return Counter((_folded(min(names[id(parameter)])), tuple(parameter.shape)) for parameter in model.parameters())


def parameters_of_shape(shape: ModelShape, model: Any) -> Parameters:
    """The same of zerokit's count, whose names must be names of the model."""
    canonical = {}
    first: dict[int, str] = {}
    for name, parameter in sorted(model.named_parameters(remove_duplicate=False)):
        canonical[_folded(name)] = _folded(first.setdefault(id(parameter), name))
    found: Parameters = Counter()
    for tensor in shape.tensors:
        found[canonical.get(_folded(tensor.name), f"not in the model: {tensor.name}"), tensor.shape] += tensor.count
    return found


def _folded(name: str) -> str:
    return re.sub(r"\.(\d+|\*)(?=\.|$)", ".*", name)

"""The parameters of a model as data: one entry per parameter of a layer, with its number of occurrences.

Names and shapes are those of transformers' modules, which DeepSpeed sees: a fused projection is one tensor,
and so are the stacked experts of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

Kind = Literal["embedding", "attention", "mlp", "norm", "router", "expert", "bias", "other"]
"""What a parameter does.

- ``embedding``: of tokens, positions and patches, and the output matrix that turns hidden states into logits;
- ``attention``: projections of attention, relative position tables and attention sinks;
- ``mlp``: the feed-forward layers, experts that see every token ("shared" experts) included;
- ``norm``: weights and biases of normalisation layers;
- ``router``: what chooses experts, with its bias;
- ``expert``: experts of which a token meets only some, with their biases;
- ``bias``: biases of linear layers;
- ``other``: poolers, classification heads, projectors between modalities.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One distinct parameter tensor of a model."""

    name: str
    """The name in `named_parameters()`; ``*`` is a layer number."""
    shape: tuple[int, ...]
    kind: Kind
    count: int = 1
    """Number of such tensors; mostly the number of layers."""
    trainable: bool = True
    """False if the model itself sets `requires_grad` to False."""

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return prod(self.shape)

    @property
    def total_elements(self) -> int:
        """Elements of all `count` tensors."""
        return self.elements * self.count

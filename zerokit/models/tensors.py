"""The parameters of a model as data: one entry per parameter of a layer, with its number of occurrences.

Names and shapes are those of transformers' modules, which DeepSpeed sees: a fused projection is one tensor,
and so are the stacked experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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


def linear(
    name: str, inputs: int, outputs: int, *, kind: Kind, bias: bool = False, transposed: bool = False
) -> list[Tensor]:
    """`torch.nn.Linear`: weight of outputs x inputs; `transposed`: GPT-2's Conv1D, inputs x outputs."""
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    tensors = [Tensor(f"{name}.weight", shape, kind)]
    if bias:
        tensors.append(Tensor(f"{name}.bias", (outputs,), "bias"))
    return tensors


def embedding(name: str, rows: int, columns: int) -> list[Tensor]:
    """`torch.nn.Embedding`."""
    return [Tensor(f"{name}.weight", (rows, columns), "embedding")]


def rms_norm(name: str, *shape: int) -> list[Tensor]:
    """A norm with a weight and no bias."""
    return [Tensor(f"{name}.weight", shape, "norm")]


def layer_norm(name: str, size: int) -> list[Tensor]:
    """`torch.nn.LayerNorm`, with weight and bias."""
    return [Tensor(f"{name}.weight", (size,), "norm"), Tensor(f"{name}.bias", (size,), "norm")]


def under(prefix: str, tensors: Iterable[Tensor]) -> list[Tensor]:
    """`tensors` as parts of module `prefix`."""
    return [replace(tensor, name=f"{prefix}.{tensor.name}") for tensor in tensors]


def repeated(prefix: str, times: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """`tensors` in each of `times` equal modules of the list `prefix`; none if `times` is 0."""
    if times == 0:
        return []
    return [
        replace(tensor, name=f"{prefix}.*.{tensor.name}", count=tensor.count * times) for tensor in tensors
    ]

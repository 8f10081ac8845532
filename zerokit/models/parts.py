"""Sizes, tensors and experts of a model, as counted by its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerokit.models.keys import Keys
from zerokit.models.tensors import Tensor


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Dimensions of a transformer in transformers' terms; of an encoder-decoder, those of its encoder."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int | None
    """The longest sequence in the config; None if it has none."""

    @property
    def query_size(self) -> int:
        """Width of all queries of a layer."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of all keys of a layer, and of all values."""
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True)
class Experts:
    """The mixture-of-experts layers of a model."""

    num_experts: int
    """Routed experts of a layer, without shared ones."""
    num_experts_per_tok: int
    """Routed experts per token."""
    num_layers: int
    """Layers with experts."""


@dataclass(frozen=True)
class Parts:
    """A model, or a part of one."""

    sizes: Sizes
    tensors: list[Tensor]
    experts: Experts | None = None
    tied: bool = False
    """The output matrix is the token embedding."""
    is_encoder_decoder: bool = False
    notes: tuple[str, ...] = ()
    """Remarks for readers."""


Build = Callable[[Keys], Parts]
"""Counts the parameters of a class of transformers."""


@dataclass(frozen=True)
class ModelType:
    """A `model_type` of config.json."""

    name: str
    classes: Mapping[str, Build]
    """The counting function of each transformers class; the first class is the one usually trained."""
    defaults: Mapping[str, Any]
    """transformers' defaults of the keys that are read."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of keys (transformers' `attribute_map`); they win over the key itself."""
    has_sdpa: bool = True
    """Whether transformers supports torch's `scaled_dot_product_attention`.

    Source: `_supports_sdpa` of transformers' classes.
    """

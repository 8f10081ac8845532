"""What a family's file says about one config.json: sizes, tensors and experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerokit.models.keys import Keys
from zerokit.models.tensors import Tensor


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The dimensions of a transformer, under transformers' names; of an encoder-decoder, its encoder's."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int | None
    """None for a model that reads no text."""
    max_position_embeddings: int | None
    """The longest sequence its config names; None where it names none."""

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
    """Routed experts of a layer, those that every token passes not counted."""
    num_experts_per_tok: int
    """Of these, how many a token meets."""
    num_layers: int
    """Layers that have experts."""


@dataclass(frozen=True)
class Parts:
    """The whole of a model, or of a part of one."""

    sizes: Sizes
    tensors: list[Tensor]
    experts: Experts | None = None
    tied: bool = False
    """The output matrix is the token embedding."""
    text_section: bool = False
    """The text model's sizes stand in the section `text_config` of the config.json."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""


@dataclass(frozen=True)
class ModelType:
    """A `model_type` of config.json."""

    name: str
    classes: Mapping[str, Callable[[Keys], Parts]]
    """How to count each class of transformers that has this model; the first is the one usually trained."""
    defaults: Mapping[str, Any]
    """What transformers takes for absent keys, of those that matter here."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of keys, as in transformers' `attribute_map`: applied last, and so they win."""
    has_sdpa: bool = True
    """Whether transformers computes its attention by torch's `scaled_dot_product_attention`.

    Source: `_supports_sdpa` of transformers' classes.
    """

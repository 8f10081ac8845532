"""Counts the parameters of model types with code, by the rows of `architectures.json` and `model_types.json`.

A model type has a body and classes, each with a head. A body is a list of groups: a module, how often it
occurs, and its blocks. A block has a row per parameter, ``KIND SIZE SIZE ... if FLAG``. A size is a product or
sum of numbers and keys of the config.

Source: transformers' `modeling_*.py` of each model type. Layers for multi-token prediction, which DeepSeek V3's
checkpoint has, are not part of transformers' model. transformers 5 ties the output matrix of T5 with
`"tie_word_embeddings": false` when it builds the model, and unties it when it loads a checkpoint with both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from zerokit.models.keys import Keys
from zerokit.models.shape import Experts
from zerokit.models.tensors import Tensor
from zerokit.tables import table_of

_TABLE = table_of(__file__)


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
class Parts:
    """The sizes, parameters and experts of a model."""

    sizes: Sizes
    tensors: Sequence[Tensor]
    experts: Experts | None
    tied: bool
    """The output matrix is the token embedding."""
    is_encoder_decoder: bool
    notes: tuple[str, ...]
    """Remarks for readers."""


@dataclass(frozen=True)
class ModelType:
    """A `model_type` of config.json."""

    name: str
    body: str
    classes: Mapping[str, str]
    """The head of each transformers class; the first class is the one usually trained."""
    defaults: Mapping[str, Any]
    """transformers' defaults of the keys that are read."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of keys (transformers' `attribute_map`); they win over the key itself."""
    nullable: Sequence[str] = ()
    """Keys with a default that transformers accepts as null all the same."""
    flags: Mapping[str, bool | str] = field(default_factory=dict)
    """Flags that the class fixes, or the key that it reads instead."""
    heads_divide_hidden: bool = False
    """Whether attention heads must divide the hidden size even if the config has a head size."""
    has_sdpa: bool = True
    """Whether transformers supports torch's `scaled_dot_product_attention`.

    Source: `_supports_sdpa` of transformers' classes.
    """

    def parts(self, architecture: str, keys: Keys) -> Parts:
        """Count a class of this type.

        Raises:
            NotCountedError: a setting has no code.
            ModelError: a key is missing or invalid.
        """
        head = _TABLE["heads"][self.classes[architecture]]
        return _Counter(self, head, keys).parts()


@cache
def model_types() -> Mapping[str, Mapping[str, Any]]:
    """The rows of `model_types.json` by the `model_type` of config.json."""
    text = Path(__file__).with_name("model_types.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def model_type(name: str) -> ModelType | None:
    """The model type of that name, or None without code."""
    row = model_types().get(name)
    return None if row is None else ModelType(name, **row)


class _Counter:
    """Counts a class with the head `head`."""

    def __init__(self, known: ModelType, head: Mapping[str, Any], keys: Keys) -> None:
        self._known, self._head, self._keys = known, head, keys
        self._body = _body(head.get("body", known.body))
        keys.not_counted(*self._body.get("not_counted", ()))
        self._sizes: Sizes | None = None
        self._sizes = self._read_sizes()

    def parts(self) -> Parts:
        assert self._sizes is not None
        module = f"{self._head['module']}." if "module" in self._head else ""
        groups = [(module + place, times, blocks) for place, times, *blocks in self._body["groups"]]
        groups += [(module, 1, self._head.get("inside", ())), ("", 1, self._head.get("outside", ()))]
        is_tied = self._head.get("is_tied", False)
        return Parts(
            self._sizes,
            [tensor for group in groups for tensor in self._tensors(*group)],
            self._experts(*self._body["experts"]) if "experts" in self._body else None,
            self._keys.flag(is_tied) if isinstance(is_tied, str) else is_tied,
            self._body.get("is_encoder_decoder", False),
            self._notes() if is_tied is True else (),
        )

    def _read_sizes(self) -> Sizes:
        """The dimensions, in the spelling of the body.

        Without key-value heads there are as many as heads; without a head size it is the hidden size divided
        by the heads.
        """
        keys = self._keys
        spelled: dict[str, Any] = {one.name: one.name for one in fields(Sizes)} | self._body.get("sizes", {})
        hidden, heads, groups, head = (
            spelled[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
        )
        head_dim = None if head is None else self._number(head) if "+" in head else keys.optional_size(head)
        if head_dim is None or self._known.heads_divide_hidden:
            quotient = keys.divide(hidden, heads)
            head_dim = quotient if head_dim is None else head_dim
        num_groups = keys.optional_size(groups)
        if num_groups is not None:
            keys.divide(heads, groups)
        positions = spelled["max_position_embeddings"]
        return Sizes(
            vocab_size=keys.size("vocab_size"),
            hidden_size=keys.size(hidden),
            intermediate_size=self._number(spelled["intermediate_size"]),
            num_hidden_layers=keys.size(spelled["num_hidden_layers"]),
            num_attention_heads=keys.size(heads),
            num_key_value_heads=keys.size(heads) if num_groups is None else num_groups,
            head_dim=head_dim,
            max_position_embeddings=None if positions is None else keys.optional_size(positions),
        )

    def _tensors(self, place: str, times: int | str, blocks: Sequence[str]) -> Iterator[Tensor]:
        """The parameters of some blocks of a module that occurs several times, or never."""
        count = self._number(str(times))
        rows = (row for block in blocks for row in _TABLE["blocks"][block].items()) if count else ()
        for name, row in rows:
            words, _, flags = row.partition(" if ")
            kind, *shape = words.split()
            if all(map(self._holds, flags.split(" and ") if flags else ())):
                yield Tensor(place + name, tuple(map(self._number, shape)), kind, count)

    def _number(self, text: str) -> int:
        """The value of a size such as ``2*hidden_size``, ``a+b``, or ``a or b`` if the config may lack a."""
        first, _, otherwise = text.partition(" or ")
        if otherwise:
            return self._keys.optional_size(first) or self._number(otherwise)
        return sum(prod(map(self._factor, term.split("*"))) for term in text.split("+"))

    def _factor(self, name: str) -> int:
        keys = self._keys
        match name:
            case "num_labels":
                return keys.num_labels()
            case "type_vocab_size":
                return keys.count(name)
            case "num_decoder_layers":
                # If the encoder's layers are spelled `num_hidden_layers`, transformers applies them later: not
                # to the decoder.
                return keys.optional_size(name) or keys.own_size("num_layers")
            case "sparse_layers":
                return self._sparse_layers(self._factor("num_hidden_layers"))
            case "dense_layers":
                return self._factor("num_hidden_layers") - self._factor("sparse_layers")
        known = getattr(self._sizes, name, None)
        return int(name) if name.isdigit() else keys.size(name) if known is None else int(known)

    def _holds(self, flag: str) -> bool:
        if flag.startswith("not "):
            return not self._holds(flag.removeprefix("not "))
        if flag == "q_lora_rank":
            return self._keys.optional_size(flag) is not None
        if flag == "gated":
            return self._is_gated()
        flags: Mapping[str, bool | str] = {"output_bias": "attention_bias", **self._known.flags}
        fixed = flags.get(flag)
        if fixed is None:
            return self._keys.flag(flag)
        return fixed if isinstance(fixed, bool) else self._holds(fixed)

    def _is_gated(self) -> bool:
        """Whether T5's activation is gated (`gated-gelu`), with two input projections."""
        words = self._keys.text("feed_forward_proj").split("-")
        if len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
            self._keys.fail("feed_forward_proj", f'is "{"-".join(words)}"', 'Write it like "relu" or "gated-gelu"')
        return words[0] == "gated"

    def _sparse_layers(self, num_layers: int) -> int:
        """The number of layers with experts.

        DeepSeek: those after the first dense ones. Qwen: layers step, 2 step, 3 step, ..., without those in
        `mlp_only_layers` (from 0).
        """
        keys = self._keys
        if "first_k_dense_replace" in self._known.defaults:
            return num_layers - min(keys.count("first_k_dense_replace"), num_layers)
        if keys.count("num_experts") == 0:
            return 0
        step = keys.size("decoder_sparse_step")
        dense = {
            index for index in keys.layers("mlp_only_layers") if 0 <= index < num_layers and (index + 1) % step == 0
        }
        return num_layers // step - len(dense)

    def _experts(self, num_experts: str, num_layers: str) -> Experts | None:
        """The experts of a model; `num_experts` is the config key of their number."""
        keys, layers = self._keys, self._number(num_layers)
        if not layers:
            return None
        number, chosen = keys.size(num_experts), keys.optional_size("num_experts_per_tok")
        if chosen is None:
            chosen = number  # only DeepSeek V2's default, which is none
        if chosen > number:
            keys.fail("num_experts_per_tok", f"is {chosen}, of only {number} experts", f"Give at most {num_experts}")
        return Experts(num_experts=number, num_experts_per_tok=chosen, num_layers=layers)

    def _notes(self) -> tuple[str, ...]:
        """What T5's checkpoints have in addition."""
        if self._keys.value("tie_word_embeddings") is not False:
            return ()
        elements = self._number("vocab_size*hidden_size")
        return (
            f"its checkpoints may hold an output matrix of their own (lm_head.weight, {elements:,} "
            "parameters more), which transformers 5 builds tied to the embedding and loads untied",
        )


def _body(name: str) -> Mapping[str, Any]:
    """A body, with the groups and sizes of the one above it."""
    body = _TABLE["bodies"][name]
    if "above" not in body:
        return dict(body)
    above = _body(body["above"])
    return {**above, **body, "groups": [*above["groups"], *body["groups"]]}
